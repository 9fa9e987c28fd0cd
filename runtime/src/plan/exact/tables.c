/* Stores tables of costs, each once. */
#include <string.h>

#include "network.h"

static uint64_t hash_of(int32_t rows, int32_t cols, const double *cells) {
    uint64_t hash = (uint64_t)rows << 32 | (uint32_t)cols;
    for (int64_t k = 0; k < (int64_t)rows * cols; k++) {
        uint64_t bits;
        memcpy(&bits, &cells[k], sizeof bits);
        hash = (hash ^ bits) * UINT64_C(0x9E3779B97F4A7C15);
        hash ^= hash >> 29;
    }
    return hash;
}

static bool grow(tcc_network *m) {
    int64_t room = m->room ? 2 * m->room : 64, n_slots = 4 * room;
    tcc_table *tables = tcc_allocate((size_t)room * sizeof *tables);
    int32_t *slots = tcc_allocate((size_t)n_slots * sizeof *slots);
    if (!tables || !slots) {
        tcc_free(tables);
        tcc_free(slots);
        return false;
    }
    memset(slots, -1, (size_t)n_slots * sizeof *slots);
    for (int32_t t = 0; t < m->tables; t++) {
        tables[t] = m->table[t];
        int64_t at = (int64_t)(tables[t].hash & (uint64_t)(n_slots - 1));
        while (slots[at] >= 0) at = (at + 1) & (n_slots - 1);
        slots[at] = t;
    }
    tcc_free(m->table);
    tcc_free(m->slots);
    m->table = tables;
    m->slots = slots;
    m->room = room;
    m->n_slots = n_slots;
    return true;
}

int32_t tcc_network_table(tcc_network *m, int32_t rows, int32_t cols, const double *cells) {
    size_t count = (size_t)rows * (size_t)cols;
    if (m->tables == m->room && !grow(m)) return -1;
    uint64_t hash = hash_of(rows, cols, cells);
    int64_t at = (int64_t)(hash & (uint64_t)(m->n_slots - 1));
    for (; m->slots[at] >= 0; at = (at + 1) & (m->n_slots - 1)) {
        const tcc_table *table = &m->table[m->slots[at]];
        if (table->hash == hash && table->rows == rows && table->cols == cols &&
            !memcmp(table->cells, cells, count * sizeof *cells))
            return m->slots[at];
    }
    double *copy = tcc_allocate(2 * count * sizeof *copy);
    if (!copy) return -1;
    memcpy(copy, cells, count * sizeof *copy);
    for (int32_t r = 0; r < rows; r++)
        for (int32_t c = 0; c < cols; c++)
            copy[count + (size_t)c * (size_t)rows + (size_t)r] =
                cells[(size_t)r * (size_t)cols + (size_t)c];
    m->table[m->tables] = (tcc_table){rows, cols, hash, copy, copy + count};
    m->slots[at] = m->tables;
    return m->tables++;
}

void tcc_network_free_tables(tcc_network *m) {
    for (int32_t t = 0; t < m->tables; t++) tcc_free(m->table[t].cells);
    tcc_free(m->table);
    tcc_free(m->slots);
    m->table = NULL;
    m->slots = NULL;
    m->tables = 0;
    m->room = m->n_slots = 0;
}
