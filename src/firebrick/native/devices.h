/* What the host program asks of a machine: one row a type of device. A field that is NULL is refused by name. */
#ifndef FIREBRICK_DEVICES_H
#define FIREBRICK_DEVICES_H

#include "native.h"

/* A device during one call: the stream that its kernels go to, and what `leave` needs. */
typedef struct {
    void *stream, *context;
    uint8_t entered, begun; /* begun: a kernel of the call was launched */
} FbWork;

/* One launch. kernel: what the row's loader gave. grid: programs along each axis; none on CPUs, which share the work out. */
typedef struct {
    const void *kernel;
    void **buffers;
    const int64_t *sizes, *grid;
    const uint8_t *values; /* not NULL: which buffers are a number on a CPU that the kernel takes by value */
    int buffer_count, size_count, grid_count;
} FbLaunch;

typedef struct {
    const char *name, *symbol; /* the C ABI's function that tells torch's number for the type */
    const char *library;       /* where the C ABI's functions for it are, and how their names begin */
    const char *prefix;
    int32_t alignment;         /* bytes that kernels expect addresses to be multiples of */
    int own_memory;            /* no tensor of torch lies in its memory, whose places are no addresses */
    int (*enter)(int index, FbWork *work); /* NULL: nothing to do; as `leave` */
    void (*leave)(FbWork *work);
    void *(*allocate)(int index, int64_t bytes, FbHandle *owner); /* memory of one call or longer, and a tensor that owns it, or NULL */
    void (*free)(void *memory, FbHandle owner);
    int (*launch)(FbWork *work, const FbLaunch *launch);
    int (*copy)(const FbWork *work, void *to, const void *from, int64_t bytes);
    const char *(*error)(void); /* what went wrong last in this thread */
    /* A hash of dense rows that changes when any row or any column does; NULL where the host can't read the memory. */
    uint64_t (*fingerprint)(const void *data, int item, int64_t rows, int64_t columns);
} FbMachine;

/* The row of a type of device; NULL with an exception set if there is none or torch does not know it. */
const FbMachine *fb_machine(const char *name);
/* Torch's number for the row's type, -1 where it has none. */
int32_t fb_machine_code(const FbMachine *machine);
/* The library with the C ABI's functions for a machine; NULL if torch was built without. */
void *fb_machine_library(const FbMachine *machine);

extern const FbMachine fb_cpu, fb_cuda, fb_driven;
/* Whether a machine of this name is driven by Python. */
int fb_is_driven(const char *name);
/* cpu.c: memory that will be filled at once; and work that is many times the same, on all threads of the host. */
void fb_use_huge_pages(void *memory, int64_t size);
void fb_cpu_share(void (*one)(void *work, int i), void *work, int count);
int fb_cpu_callers(void); /* threads that are in a call */
void fb_cpu_init(void);
int fb_cuda_init(PyObject *module); /* cuda.c */
int fb_driven_init(PyObject *module); /* driven.c */

#endif
