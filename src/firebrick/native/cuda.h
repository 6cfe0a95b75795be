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
#define CU_FUNCTIONS(F) \
    F(init, cuInit, (unsigned)) \
    F(get_device, cuDeviceGet, (int *, int)) \
    F(retain_context, cuDevicePrimaryCtxRetain, (void **, int)) \
    F(get_context, cuCtxGetCurrent, (void **)) \
    F(push_context, cuCtxPushCurrent_v2, (void *)) \
    F(pop_context, cuCtxPopCurrent_v2, (void **)) \
    F(load_module, cuModuleLoadData, (void **, const void *)) \
    F(unload_module, cuModuleUnload, (void *)) \
    F(get_function, cuModuleGetFunction, (void **, void *, const char *)) \
    F(set_attribute, cuFuncSetAttribute, (void *, int, int)) \
    F(launch, cuLaunchKernelEx, (const CuConfig *, void *, void **, void **)) \
    F(copy, cuMemcpyDtoDAsync_v2, (uint64_t, uint64_t, size_t, void *)) \
    F(error_text, cuGetErrorString, (int, const char **)) \
    F(capture_info, cuStreamGetCaptureInfo_v3, (void *, int *, uint64_t *, void **, void *const **, const void **, size_t *)) \
    F(instantiate, cuGraphInstantiateWithFlags, (void **, void *, unsigned long long)) \
    F(launch_graph, cuGraphLaunch, (void *, void *)) \
    F(set_kernel, cuGraphExecKernelNodeSetParams_v2, (void *, void *, const CuKernelNode *)) \
    F(set_copy, cuGraphExecMemcpyNodeSetParams, (void *, void *, const CuCopyNode *, void *)) \
    F(destroy_graph, cuGraphExecDestroy, (void *)) \
    F(get_copy, cuGraphMemcpyNodeGetParams, (void *, CuCopyNode *)) \
    F(new_stream, cuStreamCreate, (void **, unsigned)) \
    F(new_event, cuEventCreate, (void **, unsigned)) \
    F(record_event, cuEventRecord, (void *, void *)) \
    F(query_event, cuEventQuery, (void *)) \
    F(elapsed, cuEventElapsedTime, (float *, void *, void *)) \
    F(destroy_event, cuEventDestroy_v2, (void *)) \
    F(begin_capture, cuStreamBeginCapture_v2, (void *, int)) \
    F(end_capture, cuStreamEndCapture, (void *, void **)) \
    F(forget_graph, cuGraphDestroy, (void *))
#define CU_MEMBER(name, symbol, args) int(*name) args;
typedef struct {
    CU_FUNCTIONS(CU_MEMBER)
} CuDriver;
extern CuDriver fb_cuda_driver;

/* What the address of a kernel points to. shared: bytes. dependent: starts while the kernel before it still runs.
   maps: the last buffer is memory for the descriptors that it makes. */
typedef struct {
    void *function;
    unsigned threads, shared;
    uint8_t dependent, maps;
} CudaKernel;

/* The context that torch uses on a device; NULL with `error` set. */
void *fb_cuda_context(int index);
/* Arguments of a kernel as the driver takes them: addresses of buffers' addresses and of sizes, then of what Triton's
   kernels take last, memory for themselves or NULL, and NULL. `room` has as many places as there are arguments. */
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
