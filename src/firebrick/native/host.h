/* What program.c, libcall.c and host.c share: the parsed host table and the state of one call. */
#ifndef FIREBRICK_HOST_H
#define FIREBRICK_HOST_H

#include "devices.h"

#include <stdbool.h>
#include <stddef.h>

/* ---- the parsed table ---------------------------------------------------- */

/* A number known at compile time, or the register that holds it (register < 0: the number). */
typedef struct {
    int64_t value;
    int32_t reg;
} Num;

typedef struct {
    Num *items;
    int count;
} Nums;

typedef struct {
    const char *name;   /* as loops.dtypes names it */
    const char *symbol; /* the C ABI's function that returns torch's number for it */
    int size;
    int32_t code;
} Dtype;

typedef enum { SLOT_INPUT, SLOT_CONST, SLOT_DERIVED, SLOT_ARENA, SLOT_FRESH, SLOT_CALL, SLOT_SCRATCH } SlotKind;

typedef struct {
    SlotKind kind;
    int index; /* position among inputs, constants or derived constants */
    const Dtype *dtype;
    int device; /* position among the program's */
    Nums sizes, strides;
    Num offset; /* bytes, in the arena */
} Slot;

/* type: torch's number. index: of several of a type; any for CPUs. */
typedef struct {
    const FbMachine *machine;
    int32_t type, index;
} Device;

enum { MOST_DEVICES = 8 };

/* A strided view of a slot. whole: the slot's own tensor will do. lasting: its handle may outlive a call. */
typedef struct {
    int slot;
    const Dtype *dtype;
    Nums sizes, strides;
    Num offset; /* elements of the slot's dtype */
    uint8_t whole, lasting, retyped, varies;
} View;

typedef enum { ARG_NONE, ARG_VIEW, ARG_BOOL, ARG_INT, ARG_FLOAT, ARG_STR, ARG_ENUM, ARG_LIST } ArgKind;

typedef struct Arg {
    ArgKind kind;
    int view;          /* ARG_VIEW */
    Num num;           /* ARG_INT; ARG_BOOL; ARG_ENUM: torch's number */
    double real;       /* ARG_FLOAT */
    const char *text;  /* ARG_STR */
    PyObject *object;  /* what Python gets: bool, float, str, enum; NULL for the rest */
    struct Arg *items; /* ARG_LIST */
    int count;
} Arg;

/* The declared type of an argument, as far as the dispatcher's C interface carries it. */
typedef struct {
    char base;         /* T tensor, i int, d float, b bool, s str, y dtype, l layout, m memory format, v device, ? other */
    uint8_t list;      /* a list of base */
    uint8_t maybe;     /* the whole may be None */
    uint8_t item_maybe; /* items of the list may be None */
} Type;

typedef enum { ROUTE_DIRECT, ROUTE_DISPATCH, ROUTE_PYTHON } Route;

typedef struct {
    const char *name, *overload; /* "aten::mm", "out" */
    Arg *args;                   /* in the order of the schema, defaults filled in */
    Type *types;
    int count, positional;
    PyObject *keywords; /* names of the arguments after `positional` */
    PyObject *function; /* torch.ops.namespace.name.overload */
    int *outs;          /* slot of each result, -1: dropped */
    int out_count;
    uint8_t into; /* results are written into arguments */
    uint8_t plain; /* all results are tensors, one a slot */
    uint8_t varies; /* arguments have numbers in registers */
    Route route;
    const char *letters; /* ROUTE_DIRECT: how the function takes its arguments, see libcall.c */
    void *symbol;
} Call;

typedef enum { STEP_KERNEL, STEP_CALL, STEP_ALLOC, STEP_FREE, STEP_CHECK, STEP_DRAW } StepKind;

typedef struct {
    StepKind kind;
    const void *kernel;
    uint8_t *values; /* NULL, or which slots a launch takes by value */
    int *slots;
    int count, device;
    Nums sizes, grid;
    Call *call;
    Num low, high;            /* of a check: what the greatest and the least index in slots[0] may be */
    PyObject *error;          /* class of the exception otherwise */
    const char *text, *after; /* its text around the index; after: NULL where the text has no index */
    const char *label; /* what a profiler shows of a kernel or call */
} Step;

typedef struct {
    char op; /* s size, + * / % < (min) > (max) */
    Num a, b;
} RegisterOp;

typedef struct {
    ArgKind kind; /* ARG_VIEW, ARG_INT, or another with `object` */
    int view;
    Num num;
    PyObject *object;
} Output;

typedef struct Block {
    struct Block *next;
} Block;

typedef struct {
    Slot *slots;
    View *views;
    Step *steps;
    RegisterOp *registers;
    Output *outputs;
    int *inputs, *consts, *derived; /* slots */
    int *mutated;                   /* slots of inputs and constants that the program writes */
    int slot_count, view_count, step_count, register_count, output_count, input_count, const_count, derived_count, mutated_count;
    int widest_launch, arena_device, device_count;
    Device devices[MOST_DEVICES];
    Num arena;
    uint8_t release_gil, calls_library;
    Block *blocks; /* memory of all of the above */
    PyObject *keep; /* list of objects that texts and args point into */
    int *undo, undo_count; /* the first step that writes inputs or constants, and their slots: a later step may raise */
    int keeps_memory; /* whether glibc is told to keep what calls free */
    int varying;      /* numbers that were parsed and are in registers */
} Program;

static inline int64_t fb_num(const int64_t *registers, Num n) { return n.reg < 0 ? n.value : registers[n.reg]; }

/* Fills `program` from the table (a dict, see host/table.py); -1 with an exception set. */
int fb_program_parse(Program *program, PyObject *table, PyObject *kernels, PyObject *resolve);
/* Names the kernels and calls for profilers, in order; -1 with an exception set. */
int fb_program_label(Program *program, PyObject *labels);
void fb_program_clear(Program *program);
int fb_program_traverse(Program *program, visitproc visit, void *arg);
void *fb_program_alloc(Program *program, size_t size);
const Dtype *fb_dtype(const char *name);
/* Item `position` of a list or a borrowed item of a tuple; NULL with an exception set when there is none. */
PyObject *fb_item(PyObject *sequence, Py_ssize_t position);

/* ---- the state of one call ------------------------------------------------ */

/* Everything that a call writes. Kept between calls, never used by two at once. */
typedef struct Space {
    struct Space *next;
    uintptr_t user;     /* the thread that had it last: what it wrote lies in its caches, and on its node of memory */
    unsigned turn;      /* the executable's when it was given back */
    char *arena;        /* kept between calls on a CPU; other machines' allocators keep it for all */
    FbHandle arena_owner;
    int64_t arena_size;
    FbWork work[MOST_DEVICES];
    char *before;       /* what the slots to undo held when the call began */
    int64_t before_size;
    int at;             /* the step that runs */
    int64_t made;       /* bytes of tensors that this call allocated and that the C library may keep when they are free */
    int64_t *registers;
    void **pointers;    /* data of each slot */
    FbHandle *handles;  /* tensor of each slot, NULL for those in the arena */
    uint8_t *owned;     /* whether this call must delete the handle */
    PyObject **objects; /* Python tensor of each derived slot, and of those that were returned already */
    FbHandle *views;    /* handles of lasting views */
    void **view_bases;  /* the data that they were made for */
    void **launch;      /* arguments of one kernel */
    int64_t *launch_sizes;
    int64_t *numbers; /* room for one a slot, at even places */
    PyThreadState *thread; /* set while the GIL is released */
    struct Recording *into; /* what launches are noted in while they are recorded */
    PyObject *branches; /* what says on which stream each step of a recording is captured, where there are several */
} Space;

/* ---- the executable --------------------------------------------------------- */

/* What a constant looked like when the derived constants were computed. */
typedef struct {
    void *data;
    int64_t version;
    uint64_t print;
} Stamp;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    Program program;
    PyObject *constants; /* list of tensors */
    PyObject *derived;   /* list of tensors, or NULL before the first call */
    PyObject *refresh;   /* computes the derived constants */
    PyObject *changed;   /* exception class: a constant is not what the table was made for */
    PyObject *libraries; /* keeps the kernels' code loaded */
    int *sources;        /* positions of constants that derived ones come from */
    Stamp *stamps; /* as they were at the last call */
    int source_count;
    Space *spaces; /* that no call uses now, those first that were used last */
    unsigned turns;
    /* Recorded programs, cuda_graphs.c. recorder: NULL where nothing is recorded. card: the position of the device. */
    PyObject *recorder;
    struct Recording *recordings;
    uint8_t *moves; /* what is known of each slot */
    int card, forced, branches, recordings_made, interleaved; /* interleaved: weights lie on all nodes of memory */
    unsigned calls;
    int resizes, own_sizes; /* whether one recording does for several sizes; sizes that have had one of their own */
} Executable;

/* cpu_nodes.c: lets weights lie on all nodes of memory, where the process has processors of several. */
void fb_interleave(const Program *program, const Space *space);
/* Runs the recipe if a source is not what it was; -1 with an exception set. */
int fb_update_derived(Executable *self);
int fb_library_init(PyObject *module);

typedef struct Recording Recording;
/* 1 where all is on one GPU, 0 elsewhere, -1 without memory. */
int fb_recordable(Executable *self);
/* 1: a graph does the work of this call. 0: the steps are to run, then `fb_watched` where there is one. -1: exception. */
int fb_replay(Executable *self, Space *space, Recording **watched);
void fb_watched(Recording *rec, int complete);
void fb_note_launch(const Program *program, Space *space, int step);
/* Turns to the stream of a step that is recorded; as `run_step`. */
int fb_turn(const Program *program, Space *space, int step);
int fb_newest(struct Recording *rec, void *stream, void **node);
/* Whether all that the steps write may have memory that no two buffers share; allocates it, but for results of calls. */
int fb_is_spread(const Program *program, const int64_t *registers);
int fb_spread(const Program *program, Space *own);
void fb_recordings_clear(Executable *self);

/* Parts of a call, host.c; each returns 0, or -1 with an exception set where it can fail. */
Space *fb_new_space(const Program *program);
void fb_clear_space(const Program *program, Space *space);
void fb_free_space(const Program *program, Space *space);
int fb_enter(const Program *program, Space *space);
void fb_leave(const Program *program, Space *space);
int fb_reserve_arena(const Program *program, Space *space);
int fb_run_plainly(const Program *program, Space *space);
/* Whether a tensor has dtype, sizes and strides of a slot; strides of axes with one element don't count. */
int fb_has_layout(const Space *space, const Slot *slot, FbHandle handle);
/* A tensor as a slot says, where torch's tensors of its device lie; 0 on success. */
int32_t fb_new_tensor(const Program *program, const Space *space, const Slot *slot, FbHandle *made);
/* Numbers of a call; args NULL: those that are made of inputs' sizes, which are there. -1 where an input has no such size. */
int fb_fill_registers(const Program *program, int64_t *registers, PyObject *const *args);
/* Bytes from a slot's first element to the end of its last. */
int64_t fb_span(const Program *program, const int64_t *registers, int slot);
/* Memory of a slot; without exceptions. */
int fb_allocate(const Program *program, Space *space, int slot);
void fb_release(const Program *program, Space *space, int slot);
/* Whether steps write a slot. */
int fb_is_written(const Program *program, int slot);
/* Whether a slot of a recording needs no memory while it is made, since its kernels get the address of each call. */
int fb_is_given(const struct Recording *rec, int slot);
/* A launch of a step with the slots at `pointers`, until the next one of the space. */
FbLaunch fb_launch_of(Space *space, const Step *step, void *const *pointers, int64_t grid[3]);

/* The tensor of a view; *temporary is 1 when the caller must delete it. NULL on an error of torch. */
FbHandle fb_view(const Program *program, Space *space, int view, int *temporary);
int fb_call(const Program *program, Space *space, Call *call);
/* Sets RuntimeError with torch's message, or `what` where torch does not tell. Needs the GIL. */
void fb_torch_error(const char *what);
void fb_gil_take(Space *space);
void fb_gil_release(Space *space);
int fb_libcall_init(void);
/* Chooses how a parsed call reaches torch. */
void fb_call_route(const Program *program, Call *call);
/* A new Python tensor for a handle, which stays the caller's. */
PyObject *fb_wrap(FbHandle handle);

/* More of torch's C ABI; entries may be NULL in some versions of torch where the comment says so. */
typedef struct {
    int32_t (*empty_strided)(int64_t, const int64_t *, const int64_t *, int32_t, int32_t, int32_t, FbHandle *);
    int32_t (*from_blob)(void *, int64_t, const int64_t *, const int64_t *, int64_t, int32_t, int32_t, int32_t, FbHandle *);
    int32_t (*reinterpret)(FbHandle, int64_t, const int64_t *, const int64_t *, int64_t, FbHandle *);
    int32_t (*view_dtype)(FbHandle, int32_t, FbHandle *);
    int32_t (*new_handle)(FbHandle, FbHandle *);
    int32_t (*copy)(FbHandle, FbHandle, int32_t);
    void (*set_grad_mode)(int32_t);
    bool (*autocast_enabled)(int8_t); /* may be NULL, as the next */
    void (*set_autocast)(int8_t, bool);
    int32_t (*call_dispatcher)(const char *, const char *, uint64_t *);
    int32_t (*new_list)(size_t, void **);              /* may be NULL */
    int32_t (*list_push)(void *, uint64_t);            /* may be NULL */
    int32_t (*new_string)(const char *, size_t, void **); /* may be NULL */
    int32_t (*new_cell)(uint64_t **);                  /* from 2.13 */
    const char *(*error_text)(void);                   /* from 2.13 */
    PyObject *(*wrap)(const void *);                   /* may be NULL */
    uint8_t (*has_callbacks)(void);                    /* the rest: all or none of them is NULL */
    int32_t (*range_start)(const char *, void *, void *const *, uint64_t, void **);
    int32_t (*range_end)(void *);
} FbHost;
extern FbHost fb_host;

#endif
