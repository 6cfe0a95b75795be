#include "native.h"

int fb_host_init(PyObject *module) {
    (void)module;
    return 0;
}
