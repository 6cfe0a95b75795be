#include "native.h"

int fb_frame_init(PyObject *module) {
    (void)module;
    return 0;
}
