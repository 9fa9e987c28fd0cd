/* Reads how much the control groups around the process leave it.  Handles version 1, version 2, and
 * both at once.
 *
 * A hierarchy of groups is a mounted folder: /proc/self/mountinfo says where, and /proc/self/cgroup
 * says in which group of each hierarchy the process is.  A group's limit also holds for the groups
 * inside it.  In a container the mount may show only a part of the hierarchy, without the process's
 * group; then the mounted folder is the nearest that can be read. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime.h"

enum { PATH = 4096 };

/* ---- one group ---------------------------------------------------------------------------------------- */

/* Reads the files of a group's folder into `out`. */
typedef void look(const char *folder, void *out);

enum { LINE = 128 };

/* Finds the line of a file that begins with the word `key`, or the first line where `key` is "".
 * Returns false without such a line. */
static TCC_RARE bool find_line(const char *folder, const char *name, const char *key, char text[LINE]) {
    size_t room = strlen(folder) + strlen(name) + 2, length = strlen(key);
    char *path = malloc(room); /* on the heap, because a thread may have a small stack */
    if (!path) return false;
    snprintf(path, room, "%s/%s", folder, name);
    FILE *file = fopen(path, "re");
    free(path);
    bool is_line = false;
    while (file && !is_line && fgets(text, LINE, file))
        is_line = !length || (!strncmp(text, key, length) && (text[length] == ' ' || text[length] == ':'));
    if (file) fclose(file);
    return is_line;
}

/* Returns the number behind `key`; 0 without one. */
static TCC_RARE int64_t number_in(const char *folder, const char *name, const char *key) {
    char text[LINE];
    long long number = 0;
    if (!find_line(folder, name, key, text)) return 0;
    const char *at = text + strlen(key);
    return sscanf(at + (*at == ':'), "%lld", &number) == 1 ? number : 0;
}

static TCC_RARE int64_t cpus_of(const char *folder) {
    char text[LINE];
    long long quota = 0, period = 0;
    if (!find_line(folder, "cpu.max", "", text)) {
        quota = number_in(folder, "cpu.cfs_quota_us", ""); /* version 1; -1: none */
        period = number_in(folder, "cpu.cfs_period_us", "");
    } else if (sscanf(text, "%lld %lld", &quota, &period) != 2) {
        return 0;
    }
    return quota > 0 && period > 0 ? quota / period + (quota % period != 0) : 0;
}

static TCC_RARE void look_at_cpus(const char *folder, void *out) {
    int64_t cpus = cpus_of(folder), *fewest = out;
    if (cpus && (!*fewest || cpus < *fewest)) *fewest = cpus;
}

static TCC_RARE void look_at_memory(const char *folder, void *out) {
    tcc_room *tightest = out;
    int64_t limit = number_in(folder, "memory.max", "");
    bool second = limit > 0;
    if (!second) limit = number_in(folder, "memory.limit_in_bytes", "");
    if (limit <= 0 || limit > INT64_MAX / 2) return; /* version 1 writes a number for "no limit" */
    int64_t used = number_in(folder, second ? "memory.current" : "memory.usage_in_bytes", "");
    int64_t files = number_in(folder, "memory.stat", second ? "inactive_file" : "total_inactive_file");
    int64_t remaining = limit - used + files;
    if (remaining < 0) remaining = 0;
    if (remaining < tightest->remaining) *tightest = (tcc_room){remaining, limit, used, "its control group"};
}

/* ---- the groups around the process -------------------------------------------------------------------- */

static TCC_RARE bool has_word(const char *list, const char *word) {
    size_t length = strlen(word);
    for (const char *at = list; at; at = strchr(at, ','), at += at != NULL)
        if (!strncmp(at, word, length) && (at[length] == ',' || !at[length])) return true;
    return false;
}

/* Finds the process's group in the hierarchy of a controller, as /proc/self/cgroup writes it.  The
 * controller of version 2 is "". */
static TCC_RARE bool find_group(const char *controller, char out_group[PATH]) {
    FILE *file = fopen("/proc/self/cgroup", "re");
    char *line = NULL;
    size_t room = 0;
    bool is_line = false;
    while (file && !is_line && getline(&line, &room, file) > 0) {
        char *list = strchr(line, ':'), *group = list ? strchr(list + 1, ':') : NULL;
        if (!group) continue;
        *group++ = 0;
        group[strcspn(group, "\n")] = 0;
        is_line = *controller ? has_word(list + 1, controller) : !list[1];
        if (is_line) snprintf(out_group, PATH, "%s", group);
    }
    free(line);
    if (file) fclose(file);
    return is_line;
}

/* Replaces escapes in place: mountinfo writes a space as \040. */
static TCC_RARE void unescape(char *text) {
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
    char top[PATH];   /* the group at the mounted folder */
    char place[PATH]; /* the folder */
    char group[PATH]; /* the process's group */
    char folder[2 * PATH];
    bool second; /* version 2 of control groups */
} hierarchy;

/* Reads the hierarchy that a line of mountinfo mounts.  Returns false if it cannot have limits of
 * the controller. */
static TCC_RARE bool read_mount(const char *line, const char *controller, hierarchy *out) {
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

/* Returns the path of `group` below the mounted group; "" where the mount does not show it. */
static const char *path_below(const char *top, const char *group) {
    size_t length = strcmp(top, "/") ? strlen(top) : 0;
    bool below = !strncmp(group, top, length) && (group[length] == '/' || !group[length]);
    return below && !strstr(group, "/..") ? group + length : "";
}

/* Reads the process's group in that hierarchy and the groups around it. */
static TCC_RARE void look_around(hierarchy *in, const char *controller, look *look, void *out) {
    if (!find_group(in->second ? "" : controller, in->group)) return;
    size_t top = strlen(in->place);
    snprintf(in->folder, sizeof in->folder, "%s%s", in->place, path_below(in->top, in->group));
    look(in->folder, out);
    while (strlen(in->folder) > top) {
        *strrchr(in->folder, '/') = 0;
        look(in->folder, out);
    }
}

static TCC_RARE void look_at_groups(const char *controller, look *look, void *out) {
    FILE *file = fopen("/proc/self/mountinfo", "re");
    hierarchy *in = file ? malloc(sizeof *in) : NULL;
    char *line = NULL;
    size_t room = 0;
    while (in && getline(&line, &room, file) > 0)
        if (read_mount(line, controller, in)) look_around(in, controller, look, out);
    free(line);
    free(in);
    if (file) fclose(file);
}

int64_t tcc_group_cpus(void) {
    int64_t cpus = 0;
    look_at_groups("cpu", look_at_cpus, &cpus);
    return cpus;
}

void tcc_memory_room(tcc_room *out) {
    int64_t all = number_in("/proc", "meminfo", "MemTotal") * 1024;
    int64_t available = number_in("/proc", "meminfo", "MemAvailable") * 1024;
    if (!all || !available) all = available = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    *out = (tcc_room){available, all, all - available, "the machine"};
    look_at_groups("memory", look_at_memory, out);
}
