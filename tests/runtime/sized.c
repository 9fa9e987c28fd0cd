/* Tests structs of every size against this program's own rule for which are accepted, in memory
 * that ends where the struct does. */
#include "sized.h"

#include <string.h>

typedef struct thing {
    uint32_t struct_size;
    int32_t first, second;
    const char *third;
    int32_t fourth, fifth;
} thing;

static const tcc_sized kind = {"thing", sizeof(thing), TCC_END(thing, first),
                               TCC_ENDS(thing, first) | TCC_ENDS(thing, second) |
                                   TCC_ENDS(thing, third) | TCC_ENDS(thing, fourth) |
                                   TCC_ENDS(thing, fifth)};

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "size %u, line %d: %s; %s\n", size, __LINE__, #condition,              \
                    tcc_last_error());                                                             \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

static bool is_known(uint32_t size) {
    return size == 8 || size == 12 || size == 24 || size == 28 || size == 32;
}

/* Makes a struct of `size` bytes (or only the four that hold the size). The bytes behind the fields
 * of `thing` are `behind`. */
static char *make_struct(uint32_t size, char behind) {
    const thing full = {size, 1, 2, "third", 4, 5};
    size_t bytes = size < 4 ? 4 : size > 4096 ? 4 : size;
    char *memory = malloc(bytes);
    memset(memory, 0, bytes);
    memcpy(memory, &full, bytes < sizeof full ? bytes : sizeof full);
    if (bytes > sizeof full) memory[bytes - 1] = behind;
    return memory;
}

int main(void) {
    const thing defaults = {0, -1, -2, "default", -4, -5};
    for (uint32_t size = 0; size < 5000; size++) {
        bool newer = size > sizeof(thing) && size % 4 == 0 && size <= 4096;
        for (int behind = 0; behind < 2; behind++) {
            thing read = defaults;
            char *theirs = make_struct(size, (char)behind), both[64];
            tcc_status status = tcc_sized_read(&kind, theirs, &read);
            bool is_accepted = is_known(size) || (newer && !behind);
            CHECK(status == (is_accepted ? TCC_OK : TCC_INVALID_ARGUMENT));
            (void)snprintf(both, sizeof both, "it has %u bytes", size);
            if (!is_accepted) CHECK(strstr(tcc_last_error(), "the thing is") && strstr(tcc_last_error(), both));
            if (!is_accepted) CHECK(strstr(tcc_last_error(), "8 to 32 bytes"));
            CHECK(!is_accepted || (read.struct_size == sizeof read && read.first == 1));
            CHECK(read.second == (is_accepted && size >= 12 ? 2 : -2));
            CHECK(strcmp(read.third, is_accepted && size >= 24 ? "third" : "default") == 0);
            CHECK(read.fourth == (is_accepted && size >= 28 ? 4 : -4));
            CHECK(read.fifth == (is_accepted && size >= 32 ? 5 : -5));
            const thing ours = {77, 11, 12, "known", 14, 15};
            status = tcc_sized_write(&kind, &ours, theirs);
            is_accepted = is_known(size) || newer;
            CHECK(status == (is_accepted ? TCC_OK : TCC_INVALID_ARGUMENT));
            memcpy(&read, theirs, 4);
            CHECK(read.struct_size == size);
            if (is_accepted) CHECK(memcmp(theirs + 4, (const char *)&ours + 4, 4) == 0);
            if (newer) CHECK(theirs[size - 1] == behind);
            free(theirs);
        }
    }
    uint32_t size = 0;
    thing read = defaults;
    CHECK(tcc_sized_read(&kind, NULL, &read) == TCC_INVALID_ARGUMENT);
    CHECK(tcc_sized_write(&kind, &read, NULL) == TCC_INVALID_ARGUMENT);
    CHECK(strstr(tcc_last_error(), "the thing is NULL"));
    puts("ok");
    return 0;
}
