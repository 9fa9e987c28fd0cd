/* Tests whether this CPU and the operating system have the features that the kernels were compiled
 * for. */
#include "runtime.h"

#if defined(__x86_64__)
#include <cpuid.h>

static uint64_t enabled_state(void) {
    uint32_t eax, ebx, ecx, edx;
    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || !(ecx & bit_OSXSAVE)) return 0;
    __asm__ volatile("xgetbv" : "=a"(eax), "=d"(edx) : "c"(0));
    return (uint64_t)edx << 32 | eax;
}

static bool has(const tcc_feature *feature) {
    uint32_t reg[4];
    if (feature->reg > 3 || feature->bit > 31) return false;
    if (!__get_cpuid_count(feature->leaf, feature->subleaf, &reg[0], &reg[1], &reg[2], &reg[3]))
        return false;
    return reg[feature->reg] >> feature->bit & 1 &&
           (enabled_state() & feature->xcr0) == feature->xcr0;
}
#elif defined(__linux__) /* Arm and others: ask the system */
#include <sys/auxv.h>

static bool has(const tcc_feature *feature) {
    return feature->bit < 64 && getauxval(feature->leaf) >> feature->bit & 1;
}
#else
static bool has(const tcc_feature *feature) {
    (void)feature;
    return false;
}
#endif

tcc_status tcc_features_check(const tcc_feature *features, int32_t count, const char *model) {
    for (int32_t i = 0; i < count; i++)
        if (!has(&features[i]))
            return tcc_fail(TCC_UNSUPPORTED,
                            "model '%s' was compiled for a CPU with '%s', which this CPU or its "
                            "operating system lacks: compile it again for this CPU (--cpu)",
                            model, features[i].name);
    return TCC_OK;
}
