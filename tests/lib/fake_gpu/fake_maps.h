/* Tensor maps of the fake driver; a part of fake_driver.c. */
#ifndef HIP
EXPORT int cuDriverGetVersion(int *out) {
    CALLED(" ");
    *out = the.version;
    return 0;
}
#ifndef OLD
/* Writes a map as kernels read it: the address; the rank, with bit 21 wrong as in old drivers;
 * type, swizzle, interleave and fill, 16 bits each; five sizes, four strides, five extents of 32
 * bits. */
EXPORT int cuTensorMapEncodeTiled(uint64_t *out, int dtype, uint32_t rank, void *data,
                                  const uint64_t *sizes, const uint64_t *strides,
                                  const uint32_t *box, const uint32_t *steps, int interleave,
                                  int swizzle, int promotion, int outside) {
    char text[512];
    int used = snprintf(text, sizeof text, "type=%d swizzle=%d interleave=%d promotion=%d outside=%d",
                        dtype, swizzle, interleave, promotion, outside);
    uint64_t last = 0, element = dtype == 0 ? 1 : dtype == 7 ? 4 : 2;
    for (uint32_t i = 0; i < rank; i++) {
        uint64_t stride = i ? strides[i - 1] : element;
        used += snprintf(text + used, sizeof text - (size_t)used, " %llu:%llu:%u:%u",
                         (unsigned long long)sizes[i], (unsigned long long)stride, box[i], steps[i]);
        last += (sizes[i] - 1) * stride;
        if (i && stride % 16) return INVALID_VALUE;
    }
    CALLED("%s", text);
    if ((uint64_t)(uintptr_t)out % 128 || (uint64_t)data % 16 || rank < 1 || rank > 5) return INVALID_VALUE;
    if (!is_live((uint64_t)data, last + element)) return INVALID_VALUE;
    memset(out, 0, 128);
    out[0] = (uint64_t)data;
    out[1] = UINT64_C(1) << 21 | rank;
    out[2] = (uint64_t)dtype | (uint64_t)swizzle << 16 | (uint64_t)interleave << 32 |
             (uint64_t)outside << 48;
    memcpy(out + 3, sizes, rank * 8);
    memcpy(out + 8, strides, (rank - 1) * 8);
    memcpy(out + 12, box, rank * 4);
    return 0;
}
#endif
#endif
