/* What the control groups around the process leave it, of version 1, version 2, or both at once.
 *
 * A hierarchy of groups is a mounted folder; /proc/self/mountinfo says where, /proc/self/cgroup in
 * which group of each the process is.  A group's limit holds for those inside it.  In a container the
 * mount may show a part of the hierarchy only, and the process's group may not be in it: then the
 * mounted folder is as near as one gets. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime.h"

enum { PATH = 4096 };

/* ---- one group ---------------------------------------------------------------------------------------- */

/* The limit that a group's files set; 0 where they set none. */
typedef int64_t (*limit_of)(const char *folder);

static bool first_line(const char *folder, const char *name, char text[64]) {
    char path[3 * PATH];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "re");
    bool found = file && fgets(text, 64, file);
    if (file) fclose(file);
    return found;
}

static int64_t number_in(const char *folder, const char *name) {
    char text[64];
    long long number = 0;
    return first_line(folder, name, text) && sscanf(text, "%lld", &number) == 1 ? number : 0;
}

static int64_t cpus_of(const char *folder) {
    char text[64];
    long long quota = 0, period = 0;
    if (!first_line(folder, "cpu.max", text)) {
        quota = number_in(folder, "cpu.cfs_quota_us"); /* version 1; -1: none */
        period = number_in(folder, "cpu.cfs_period_us");
    } else if (sscanf(text, "%lld %lld", &quota, &period) != 2) {
        return 0;
    }
    return quota > 0 && period > 0 ? quota / period + (quota % period != 0) : 0;
}

static int64_t bytes_of(const char *folder) {
    int64_t bytes = number_in(folder, "memory.max");
    if (bytes <= 0) bytes = number_in(folder, "memory.limit_in_bytes"); /* version 1 */
    return bytes > 0 ? bytes : 0;
}

/* ---- the groups around the process -------------------------------------------------------------------- */

static bool has_word(const char *list, const char *word) {
    size_t length = strlen(word);
    for (const char *at = list; at; at = strchr(at, ','), at += at != NULL)
        if (!strncmp(at, word, length) && (at[length] == ',' || !at[length])) return true;
    return false;
}

/* The process's group in the hierarchy of a controller ("": version 2), as in /proc/self/cgroup. */
static bool own_group(const char *controller, char out_group[PATH]) {
    FILE *file = fopen("/proc/self/cgroup", "re");
    char *line = NULL;
    size_t room = 0;
    bool found = false;
    while (file && !found && getline(&line, &room, file) > 0) {
        char *list = strchr(line, ':'), *group = list ? strchr(list + 1, ':') : NULL;
        if (!group) continue;
        *group++ = 0;
        group[strcspn(group, "\n")] = 0;
        found = *controller ? has_word(list + 1, controller) : !list[1];
        if (found) snprintf(out_group, PATH, "%s", group);
    }
    free(line);
    if (file) fclose(file);
    return found;
}

/* Spaces and the like are in mountinfo as \040. */
static void unescape(char *text) {
    char *to = text;
    for (const char *at = text; *at; to++) {
        unsigned code = 0;
        int length = 0;
        if (*at == '\\' && sscanf(at + 1, "%3o%n", &code, &length) == 1 && length == 3) {
            *to = (char)code;
            at += 4;
        } else {
            *to = *at++;
        }
    }
    *to = 0;
}

typedef struct hierarchy {
    char top[PATH];  /* the group that is mounted */
    char place[PATH]; /* where */
    bool second; /* version 2 */
} hierarchy;

/* The hierarchy that a line of mountinfo mounts, if it may have limits of the controller. */
static bool read_mount(const char *line, const char *controller, hierarchy *out) {
    char type[32], options[256];
    const char *behind = strstr(line, " - ");
    if (!behind || sscanf(behind, " - %31s %*s %255s", type, options) != 2 ||
        sscanf(line, "%*s %*s %*s %4095s %4095s", out->top, out->place) != 2)
        return false;
    unescape(out->top);
    unescape(out->place);
    out->second = !strcmp(type, "cgroup2");
    return out->second || (!strcmp(type, "cgroup") && has_word(options, controller));
}

/* The path of `group` below the mounted one; "" where it is not seen there. */
static const char *path_below(const char *top, const char *group) {
    size_t length = strcmp(top, "/") ? strlen(top) : 0;
    bool below = !strncmp(group, top, length) && (group[length] == '/' || !group[length]);
    return below && !strstr(group, "/..") ? group + length : "";
}

static int64_t lesser(int64_t limit, int64_t other) {
    return other > 0 && (limit == 0 || other < limit) ? other : limit;
}

/* The least limit of the process's group in that hierarchy and those around it; 0 without one. */
static int64_t least_in(const hierarchy *in, const char *controller, limit_of read) {
    char group[PATH], folder[2 * PATH + 64];
    if (!own_group(in->second ? "" : controller, group)) return 0;
    size_t top = (size_t)snprintf(folder, sizeof folder, "%s", in->place);
    if (top >= sizeof folder) return 0;
    snprintf(folder + top, sizeof folder - top, "%s", path_below(in->top, group));
    int64_t least = read(folder);
    while (strlen(folder) > top) {
        *strrchr(folder, '/') = 0;
        least = lesser(least, read(folder));
    }
    return least;
}

static int64_t least_limit(const char *controller, limit_of read) {
    FILE *file = fopen("/proc/self/mountinfo", "re");
    char *line = NULL;
    size_t room = 0;
    int64_t least = 0;
    hierarchy in;
    while (file && getline(&line, &room, file) > 0)
        if (read_mount(line, controller, &in))
            least = lesser(least, least_in(&in, controller, read));
    free(line);
    if (file) fclose(file);
    return least;
}

int64_t tcc_group_cpus(void) { return least_limit("cpu", cpus_of); }
int64_t tcc_group_bytes(void) { return least_limit("memory", bytes_of); }
