/* firebrick._native: the one C extension. */
#include "native.h"

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "firebrick._native", "Frame hook, guard plans and host programs.", -1, NULL, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__native(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL) return NULL;
    if (fb_tensor_init(module) < 0 || fb_frame_init(module) < 0 || fb_guards_init(module) < 0 || fb_host_init(module) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
