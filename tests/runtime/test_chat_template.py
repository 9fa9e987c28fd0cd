"""Chat templates render as in transformers, and cannot do harm."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tcc.runtime import chat_template
from tcc.runtime.chat_template import chat_text
from tcc.runtime.reports import InputError, MissingLibraryError

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi {{ 1 }}"}]
CHATML = """{% for message in messages %}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + eos_token + '\\n' }}
{%- endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant\\n' }}
{% endif %}"""


def test_an_answer_begins_only_on_request() -> None:
    text = chat_text(CHATML, MESSAGES, eos="<|im_end|>")
    assert "<|im_start|>user\nHi {{ 1 }}<|im_end|>\n" in text
    assert text.endswith("<|im_start|>assistant\n\n")
    without = chat_text(CHATML, MESSAGES, eos="<|im_end|>", begin_answer=False)
    assert text == without + "<|im_start|>assistant\n\n"


@pytest.mark.parametrize(
    "template",
    [
        CHATML,
        "{{ bos_token }}{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}"
        "{{ m | tojson }}{% endfor %}{{ tools is none }}",
        "  {% set ns = namespace(n=0) %}\n  {% for m in messages %}{% set ns.n = ns.n + 1 %}\n"
        "{% endfor %}{{ ns.n }}",
    ],
)
def test_texts_are_those_of_transformers(template: str) -> None:
    pytest.importorskip("transformers")
    from transformers.utils.chat_template_utils import render_jinja_template

    expected, _ = render_jinja_template(
        [MESSAGES], chat_template=template, add_generation_prompt=True, bos_token="é", eos_token="/"
    )
    assert chat_text(template, MESSAGES, bos="é", eos="/") == expected[0]


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{% if %}", "Expected an expression"),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ nothing.there }}", "'nothing' is undefined"),
        ("{{ messages.append(1) }}", "access to attribute 'append' .* is unsafe"),
        ("{{ ''.__class__.__mro__ }}", "access to attribute '__class__' .* is unsafe"),
        ("{{ messages.__init__.__globals__ }}", "is unsafe"),
        ("{% include '/etc/passwd' %}", "no loader"),
        ("{{ 'a' * 10**9 }}", "more than 256 MiB of memory"),
        ("{{ 'a' * 10**7 }}", "more than 4194304 characters"),
        ("{{ 10 ** (10 ** 9) }}", "more than 1 s of processor time"),
        (
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
            "more than 1 s of processor time",
        ),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
    ],
)
def test_a_hostile_template_is_an_error(template: str, why: str) -> None:
    form = rf"(?s)cannot be rendered.*because: [^\n]*{why}"
    with pytest.raises(InputError, match=form) as raised:
        chat_text(template, MESSAGES)
    assert not re.search("Traceback|File ", str(raised.value))


def test_a_module_of_the_current_folder_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jinja2.py").write_text("raise SystemExit(1)")
    monkeypatch.chdir(tmp_path)
    assert chat_text("{{ bos_token }}", [], bos="b") == "b"


def test_without_jinja2_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "find_spec", lambda name: None)
    with pytest.raises(MissingLibraryError, match=r"tcc\[lm\]"):
        chat_text("", [])
