/* Prints the SHA-256 of a file and its HMAC-SHA-256 with the key in another file. The bytes are
 * added in pieces of the third argument's size. Without arguments it prints two fresh numbers. */
#include "../../../runtime/src/comm/comm.h"

static void print(const uint8_t *hash) {
    for (int i = 0; i < TCC_COMM_HASH; i++) printf("%02x", hash[i]);
    puts("");
}

static size_t read_file(const char *path, char *out, size_t room) {
    FILE *file = fopen(path, "r");
    size_t got = file ? fread(out, 1, room, file) : 0;
    if (file) fclose(file);
    return got;
}

int main(int argc, char **argv) {
    static char text[1 << 20], key[1 << 10];
    uint8_t out[TCC_COMM_HASH];
    if (argc != 4) {
        for (int i = 0; i < 2; i++) {
            if (tcc_comm_fresh(out) != TCC_OK) return 1;
            print(out);
        }
        return 0;
    }
    size_t n = read_file(argv[1], text, sizeof text), piece = strtoul(argv[3], NULL, 10);
    tcc_hash hash;
    tcc_comm_proof proof;
    tcc_hash_begin(&hash);
    tcc_comm_proof_begin(&proof, key, read_file(argv[2], key, sizeof key));
    for (size_t at = 0; at < n; at += piece) {
        size_t part = n - at < piece ? n - at : piece;
        tcc_hash_add(&hash, text + at, part);
        tcc_comm_proof_add(&proof, text + at, part);
    }
    tcc_hash_end(&hash, out);
    print(out);
    tcc_comm_proof_end(&proof, out);
    print(out);
    return 0;
}
