/* Host programs as compiler/ir/program/table.py has them, which says what the kinds mean.
 * Written by scripts/gen_docs. */
#ifndef TCC_INSTRUCTIONS_H
#define TCC_INSTRUCTIONS_H

#include <stddef.h>

enum { TCC_PLACE_INPUT, TCC_PLACE_OUTPUT, TCC_PLACE_WEIGHT, TCC_PLACE_ARENA, TCC_PLACE_STATE,
       TCC_PLACE_DYNAMIC, TCC_PLACE_ALIAS, TCC_PLACE_SYMMETRIC, TCC_PLACE_COUNT };
enum { TCC_CODE_LET, TCC_CODE_READ, TCC_CODE_CHECK, TCC_CODE_ALLOCATE, TCC_CODE_VIEW,
       TCC_CODE_LAUNCH, TCC_CODE_CALL, TCC_CODE_COPY, TCC_CODE_BRANCH, TCC_CODE_LOOP,
       TCC_CODE_PLAN, TCC_CODE_COLLECTIVE, TCC_CODE_WAIT, TCC_CODE_COUNT };
enum { TCC_INT_CONST, TCC_INT_DIM, TCC_INT_ADD, TCC_INT_SUB, TCC_INT_MUL, TCC_INT_FLOORDIV,
       TCC_INT_MOD, TCC_INT_MIN, TCC_INT_MAX, TCC_INT_RANK, TCC_INT_SEED, TCC_INT_CAPACITY,
       TCC_INT_COUNT };
enum { TCC_REL_EQ, TCC_REL_LE, TCC_REL_LT, TCC_REL_DIVIDES, TCC_REL_COUNT };
enum { TCC_COLLECTIVE_ALL_REDUCE, TCC_COLLECTIVE_REDUCE_SCATTER, TCC_COLLECTIVE_ALL_GATHER,
       TCC_COLLECTIVE_ALL_TO_ALL, TCC_COLLECTIVE_BROADCAST, TCC_COLLECTIVE_COUNT };
enum { TCC_REDUCTION_SUM, TCC_REDUCTION_PROD, TCC_REDUCTION_MIN, TCC_REDUCTION_MAX,
       TCC_REDUCTION_AVG, TCC_REDUCTION_COUNT };
enum { TCC_KIND_NONE, TCC_KIND_USED, TCC_KIND_DEFINED, TCC_KIND_READ, TCC_KIND_WRITTEN,
       TCC_KIND_TOUCHED, TCC_KIND_ALLOCATED, TCC_KIND_AIMED, TCC_KIND_CONDITION, TCC_KIND_WHEN,
       TCC_KIND_KERNEL, TCC_KIND_TICKET, TCC_KIND_GROUP, TCC_KIND_PORT, TCC_KIND_AXIS,
       TCC_KIND_NUMBER, TCC_KIND_ELEMENT, TCC_KIND_LEAST, TCC_KIND_FLAG, TCC_KIND_OPERATION,
       TCC_KIND_RELATION, TCC_KIND_COLLECTIVE, TCC_KIND_REDUCTION, TCC_KIND_DTYPE,
       TCC_KIND_INTEGER, TCC_KIND_STRING, TCC_KIND_FUNCTION, TCC_KIND_BODY, TCC_KIND_OPERAND,
       TCC_KIND_COUNT };
enum { TCC_HAS_ONE, TCC_HAS_MANY, TCC_HAS_TENSORS, TCC_HAS_COUNT };
enum { TCC_MOST_FIELDS = 10 };

/* The fields of instructions in the order of their words. */
typedef union tcc_fields {
    struct { int64_t target; int64_t op; int64_t a; int64_t b; } let;
    struct { int64_t target; int64_t buffer; tcc_dtype dtype; int64_t element; } read;
    struct { int64_t relation; int64_t a; int64_t b; const char *message; } check;
    struct { int64_t buffer; int64_t size; int64_t keep; } allocate;
    struct { int64_t buffer; int64_t base; int64_t offset; } view;
    struct { int64_t kernel; int64_t grid; int64_t least; tcc_operands buffers; tcc_operands ints; } launch;
    struct { const char *op; tcc_operands inputs; tcc_operands outputs; tcc_operands ints; tcc_operands results; } call;
    struct { int64_t target; int64_t source; int64_t size; } copy;
    struct { int64_t condition; int64_t when; tcc_body then; tcc_body otherwise; } branch;
    struct { int64_t trips; int64_t condition; int64_t counter; tcc_body body; } loop;
    struct { int64_t end; tcc_operands offsets; tcc_operands sizes; tcc_operands lives; } plan;
    struct { int64_t kind; int64_t reduction; int64_t send; int64_t receive; tcc_dtype dtype; int64_t ranks; int64_t root; int64_t ticket; int64_t group; tcc_operands counts; } collective;
    struct { int64_t ticket; int64_t send; int64_t receive; } wait;
} tcc_fields;

typedef struct tcc_field {
    uint8_t kind, form, at; /* `at` bytes behind the beginning of tcc_fields */
} tcc_field;

/* Initializers: for each code its fields, with one of no kind behind them; for each operation of a
 * let the kinds of its operands. */
#define TCC_FIELD(kind, form, member) \
    {TCC_KIND_##kind, TCC_HAS_##form, offsetof(tcc_fields, member)}
#define TCC_FIELDS { \
    { /* let */ \
        TCC_FIELD(DEFINED, ONE, let.target), \
        TCC_FIELD(OPERATION, ONE, let.op), \
        TCC_FIELD(OPERAND, ONE, let.a), \
        TCC_FIELD(OPERAND, ONE, let.b), \
    }, \
    { /* read */ \
        TCC_FIELD(DEFINED, ONE, read.target), \
        TCC_FIELD(READ, ONE, read.buffer), \
        TCC_FIELD(INTEGER, ONE, read.dtype), \
        TCC_FIELD(ELEMENT, ONE, read.element), \
    }, \
    { /* check */ \
        TCC_FIELD(RELATION, ONE, check.relation), \
        TCC_FIELD(USED, ONE, check.a), \
        TCC_FIELD(USED, ONE, check.b), \
        TCC_FIELD(STRING, ONE, check.message), \
    }, \
    { /* allocate */ \
        TCC_FIELD(ALLOCATED, ONE, allocate.buffer), \
        TCC_FIELD(USED, ONE, allocate.size), \
        TCC_FIELD(FLAG, ONE, allocate.keep), \
    }, \
    { /* view */ \
        TCC_FIELD(AIMED, ONE, view.buffer), \
        TCC_FIELD(READ, ONE, view.base), \
        TCC_FIELD(USED, ONE, view.offset), \
    }, \
    { /* launch */ \
        TCC_FIELD(KERNEL, ONE, launch.kernel), \
        TCC_FIELD(USED, ONE, launch.grid), \
        TCC_FIELD(LEAST, ONE, launch.least), \
        TCC_FIELD(TOUCHED, MANY, launch.buffers), \
        TCC_FIELD(USED, MANY, launch.ints), \
    }, \
    { /* call */ \
        TCC_FIELD(FUNCTION, ONE, call.op), \
        TCC_FIELD(READ, TENSORS, call.inputs), \
        TCC_FIELD(WRITTEN, TENSORS, call.outputs), \
        TCC_FIELD(NUMBER, MANY, call.ints), \
        TCC_FIELD(DEFINED, MANY, call.results), \
    }, \
    { /* copy */ \
        TCC_FIELD(WRITTEN, ONE, copy.target), \
        TCC_FIELD(READ, ONE, copy.source), \
        TCC_FIELD(USED, ONE, copy.size), \
    }, \
    { /* branch */ \
        TCC_FIELD(CONDITION, ONE, branch.condition), \
        TCC_FIELD(WHEN, ONE, branch.when), \
        TCC_FIELD(BODY, ONE, branch.then), \
        TCC_FIELD(BODY, ONE, branch.otherwise), \
    }, \
    { /* loop */ \
        TCC_FIELD(USED, ONE, loop.trips), \
        TCC_FIELD(CONDITION, ONE, loop.condition), \
        TCC_FIELD(DEFINED, ONE, loop.counter), \
        TCC_FIELD(BODY, ONE, loop.body), \
    }, \
    { /* plan */ \
        TCC_FIELD(DEFINED, ONE, plan.end), \
        TCC_FIELD(DEFINED, MANY, plan.offsets), \
        TCC_FIELD(USED, MANY, plan.sizes), \
        TCC_FIELD(NUMBER, MANY, plan.lives), \
    }, \
    { /* collective */ \
        TCC_FIELD(COLLECTIVE, ONE, collective.kind), \
        TCC_FIELD(REDUCTION, ONE, collective.reduction), \
        TCC_FIELD(READ, ONE, collective.send), \
        TCC_FIELD(WRITTEN, ONE, collective.receive), \
        TCC_FIELD(DTYPE, ONE, collective.dtype), \
        TCC_FIELD(NUMBER, ONE, collective.ranks), \
        TCC_FIELD(NUMBER, ONE, collective.root), \
        TCC_FIELD(TICKET, ONE, collective.ticket), \
        TCC_FIELD(GROUP, ONE, collective.group), \
        TCC_FIELD(USED, MANY, collective.counts), \
    }, \
    { /* wait */ \
        TCC_FIELD(TICKET, ONE, wait.ticket), \
        TCC_FIELD(READ, ONE, wait.send), \
        TCC_FIELD(WRITTEN, ONE, wait.receive), \
    }, \
}
#define TCC_OPERANDS { \
    {TCC_KIND_NUMBER, TCC_KIND_NUMBER}, \
    {TCC_KIND_PORT, TCC_KIND_AXIS}, \
    {TCC_KIND_USED, TCC_KIND_USED}, \
    {TCC_KIND_USED, TCC_KIND_USED}, \
    {TCC_KIND_USED, TCC_KIND_USED}, \
    {TCC_KIND_USED, TCC_KIND_USED}, \
    {TCC_KIND_USED, TCC_KIND_USED}, \
    {TCC_KIND_USED, TCC_KIND_USED}, \
    {TCC_KIND_USED, TCC_KIND_USED}, \
    {TCC_KIND_NUMBER, TCC_KIND_NUMBER}, \
    {TCC_KIND_NUMBER, TCC_KIND_NUMBER}, \
    {TCC_KIND_PORT, TCC_KIND_AXIS}, \
}

#endif
