/* Versions of dicts, which change with every change of the dict.
 *
 * CPython 3.13 can keep the values of an object's dict in the object itself. Attributes are then written without a
 * new version of the dict, and without telling its watchers. Such a dict is given a table of its own first, in the way
 * in which popitem() does it, and keeps that for life.
 */
#include "plan.h"

#if PY_VERSION_HEX >= 0x030D0000

static int has_own_table(PyObject *dict) { return ((PyDictObject *)dict)->ma_values == NULL; }

/* Takes the last item out and puts it back. */
static int give_own_table(PyObject *dict) {
    PyObject *item = PyObject_CallMethod(dict, "popitem", NULL);
    int status = item == NULL ? -1 : PyDict_SetItem(dict, PyTuple_GET_ITEM(item, 0), PyTuple_GET_ITEM(item, 1));
    Py_XDECREF(item);
    return status;
}

/* An empty dict has nothing to take out. */
static int give_empty_table(PyObject *dict) {
    PyObject *item = PyDict_SetItemString(dict, "firebrick", Py_None) < 0 ? NULL : PyObject_CallMethod(dict, "popitem", NULL);
    Py_XDECREF(item);
    return item == NULL ? -1 : 0;
}

int fb_dict_use_version(PyObject *dict) {
    if (has_own_table(dict)) return 1;
    if (!PyDict_CheckExact(dict)) return 0;
    if ((PyDict_GET_SIZE(dict) == 0 ? give_empty_table(dict) : give_own_table(dict)) < 0) PyErr_Clear();
    return has_own_table(dict);
}

#else

int fb_dict_use_version(PyObject *dict) { return 1; }

#endif
