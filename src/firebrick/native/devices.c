/* The table of machines, and its first row: the CPU, whose kernels are functions that this process calls. */
#define _GNU_SOURCE
#include "devices.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static const FbMachine *const machines[] = {&fb_cpu, &fb_cuda};

const FbMachine *fb_machine(const char *name) {
    for (size_t i = 0; i < sizeof machines / sizeof *machines; i++) {
        if (strcmp(machines[i]->name, name) == 0 && fb_machine_code(machines[i]) >= 0) return machines[i];
    }
    if (fb_is_driven(name)) return &fb_driven;
    PyErr_Format(PyExc_ValueError, "host table: no device %s", name);
    return NULL;
}

int32_t fb_machine_code(const FbMachine *machine) {
    void *symbol = dlsym(fb_torch_library(), machine->symbol);
    int32_t (*code)(void);
    memcpy(&code, &symbol, sizeof code);
    return symbol == NULL ? -1 : code();
}

void *fb_machine_library(const FbMachine *machine) {
    return machine->library == NULL ? fb_torch_library() : dlopen(machine->library, RTLD_NOLOAD | RTLD_LAZY);
}

/* Fresh memory comes page by page, at the first write to each: several times what a loop takes to fill them. */
void fb_use_huge_pages(void *memory, int64_t size) {
#ifdef MADV_HUGEPAGE
    const uintptr_t page = (uintptr_t)1 << 21, from = ((uintptr_t)memory + page - 1) & ~(page - 1);
    const uintptr_t to = ((uintptr_t)memory + (uintptr_t)size) & ~(page - 1);
    if (from < to) madvise((void *)from, to - from, MADV_HUGEPAGE);
#else
    (void)memory, (void)size;
#endif
}

static void *cpu_allocate(int index, int64_t bytes, FbHandle *owner) {
    void *memory;
    *owner = NULL;
    if (posix_memalign(&memory, bytes >= 1 << 21 ? 1 << 21 : 64, (size_t)bytes) != 0) return NULL;
    fb_use_huge_pages(memory, bytes);
    return memory;
}

static void cpu_free(void *memory, FbHandle owner) { free(memory); }

static int cpu_launch(const FbWork *work, const FbLaunch *launch) {
    void (*kernel)(void *const *, const int64_t *);
    memcpy(&kernel, &launch->kernel, sizeof kernel);
    kernel(launch->buffers, launch->sizes);
    return 0;
}

static int cpu_copy(const FbWork *work, void *to, const void *from, int64_t bytes) {
    memcpy(to, from, (size_t)bytes);
    return 0;
}

static const char *cpu_error(void) { return "out of memory"; }

const FbMachine fb_cpu = {
    .name = "cpu",
    .symbol = "aoti_torch_device_type_cpu",
    .prefix = "aoti_torch_cpu_",
    .alignment = 1,
    .allocate = cpu_allocate,
    .free = cpu_free,
    .launch = cpu_launch,
    .copy = cpu_copy,
    .error = cpu_error,
};
