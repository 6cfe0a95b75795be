#include "native.h"

int fb_guards_init(PyObject *module) {
    (void)module;
    return 0;
}
