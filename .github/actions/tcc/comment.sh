#!/bin/bash
# Writes build/tcc-report.md as a comment on the pull request NUMBER, or replaces the older report of
# the same model: the first line of a report names the model.
set -euo pipefail
comments="repos/$GITHUB_REPOSITORY/issues/$NUMBER/comments"
export FIRST_LINE
FIRST_LINE=$(head -n 1 build/tcc-report.md)
old=$(gh api "$comments" --paginate --jq '.[] | select(.body | startswith(env.FIRST_LINE)) | .id')
if [ -n "$old" ]; then
  gh api --method PATCH "repos/$GITHUB_REPOSITORY/issues/comments/${old%%$'\n'*}" \
    --field body=@build/tcc-report.md
else
  gh api --method POST "$comments" --field body=@build/tcc-report.md
fi
