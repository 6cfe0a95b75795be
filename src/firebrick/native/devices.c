/* The table of machines. */
#define _GNU_SOURCE
#include "devices.h"

#include <dlfcn.h>
#include <string.h>

static const FbMachine *const machines[] = {&fb_cpu, &fb_cuda};

const FbMachine *fb_machine(const char *name) {
    for (size_t i = 0; i < sizeof machines / sizeof *machines; i++) {
        if (strcmp(machines[i]->name, name) == 0 && fb_machine_code(machines[i]) >= 0) return machines[i];
    }
    if (fb_is_driven(name)) return &fb_driven;
    return (void *)PyErr_Format(PyExc_ValueError, "host table: no device %s", name);
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
