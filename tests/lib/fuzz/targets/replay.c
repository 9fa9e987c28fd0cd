/* Runs a fuzz target on files without libFuzzer, and prints the number of files. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        static uint8_t room[1 << 20];
        FILE *file = fopen(argv[i], "rb");
        if (!file) return 1;
        size_t size = fread(room, 1, sizeof room, file);
        fclose(file);
        uint8_t *data = malloc(size + 1);
        for (size_t at = 0; at < size; at++) data[at] = room[at];
        LLVMFuzzerTestOneInput(data, size);
        free(data);
    }
    printf("%d\n", argc - 1);
    return 0;
}
