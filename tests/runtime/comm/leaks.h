/* Counts this process's descriptors, and its mappings of memory files. */
#ifndef LEAKS_H
#define LEAKS_H

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

typedef struct leaks {
    int descriptors, mappings;
} leaks;

static inline leaks count_leaks(void) {
    leaks found = {0, 0};
    char line[512];
    DIR *folder = opendir("/proc/self/fd");
    while (folder && readdir(folder)) found.descriptors++;
    if (folder) closedir(folder);
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps))
        found.mappings += strstr(line, "/memfd:") != NULL;
    if (maps) fclose(maps);
    return found;
}

#endif
