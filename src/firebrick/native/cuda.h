/* The driver's C interface as far as it is used, without its header: names, numbers and layouts are its ABI. */
#ifndef FIREBRICK_CUDA_H
#define FIREBRICK_CUDA_H

#include "host.h"

typedef struct {
    unsigned grid[3], block[3], shared;
    void *stream, *attributes;
    unsigned attribute_count;
} CuConfig;

typedef struct {
    int32_t id, pad;
    union {
        int32_t number;
        char room[64];
    } value;
} CuAttribute;

typedef struct {
    void *function;
    unsigned grid[3], block[3], shared;
    void **params, **extra;
    void *kernel, *context;
} CuKernelNode;

typedef struct {
    size_t x, y, z, level;
    int32_t memory_type, pad;
    const void *host;
    uint64_t device;
    void *array, *reserved;
    size_t pitch, height;
} CuPlace;

typedef struct {
    CuPlace from, to;
    size_t width, height, depth;
} CuCopyNode;

/* Functions of libcuda, each returning 0 on success. */
typedef struct {
    int (*init)(unsigned);
    int (*get_device)(int *, int);
    int (*retain_context)(void **, int);
    int (*get_context)(void **);
    int (*push_context)(void *);
    int (*pop_context)(void **);
    int (*load_module)(void **, const void *);
    int (*unload_module)(void *);
    int (*get_function)(void **, void *, const char *);
    int (*set_attribute)(void *, int, int);
    int (*launch)(const CuConfig *, void *, void **, void **);
    int (*copy)(uint64_t, uint64_t, size_t, void *);
    int (*error_text)(int, const char **);
    int (*capture_info)(void *, int *, uint64_t *, void **, void *const **, const void **, size_t *);
    int (*instantiate)(void **, void *, unsigned long long);
    int (*launch_graph)(void *, void *);
    int (*set_kernel)(void *, void *, const CuKernelNode *);
    int (*set_copy)(void *, void *, const CuCopyNode *, void *);
    int (*destroy_graph)(void *);
    int (*get_copy)(void *, CuCopyNode *);
    int (*new_stream)(void **, unsigned);
    int (*new_event)(void **, unsigned);
    int (*record_event)(void *, void *);
    int (*query_event)(void *);
    int (*elapsed)(float *, void *, void *);
    int (*destroy_event)(void *);
    int (*begin_capture)(void *, int);
    int (*end_capture)(void *, void **);
    int (*forget_graph)(void *);
} CuDriver;
extern CuDriver fb_cuda_driver;

/* What the address of a kernel points to. shared: bytes. dependent: starts while the kernel before it still runs. */
typedef struct {
    void *function;
    unsigned threads, shared;
    uint8_t dependent;
} CudaKernel;

/* The context that torch uses on a device; NULL with `error` set. */
void *fb_cuda_context(int index);
/* Arguments of a kernel as the driver takes them: addresses of buffers' addresses and of sizes, then of NULLs, which
   Triton's kernels take last. `room` has as many places as there are arguments. */
enum { CUDA_TAIL = 2 };
void fb_cuda_arguments(const FbLaunch *launch, void **room);
/* Gives a kernel node of a graph other arguments. */
int fb_cuda_set_kernel(void *graph, void *node, const FbLaunch *launch);
/* Takes from a generator what eager's kernel for dropout would draw with, as numbers for kernels; as `run_step`. */
int fb_cuda_draw(const Program *program, Space *space, const Step *step);
/* Whether a stream captures (1; 2: it broke); -1 where the driver doesn't tell. */
int fb_cuda_captures(void *stream);
/* Whether the driver stands in for a card, so that its memory is this process's. */
int fb_cuda_stands_in(void);
/* 0, or -1 with the error noted for `fb_cuda.error`. */
int fb_cuda_done(int status, const char *what);

#endif
