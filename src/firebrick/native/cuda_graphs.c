/* Recorded programs: the steps of a host program on one GPU become a CUDA graph, which later calls replay.
 *
 * A call with sizes and a stream that were seen before runs its steps a few times, timed, while the inputs whose
 * addresses change are noted. Then the steps are captured on a stream of their own and in memory of their own, and the
 * graph is replayed from there on, unless it proves slower. Inputs that move and results keep the memory that the
 * caller or the allocator gives them: kernels that touch them get the addresses of the call; library calls that do, work
 * in the recording's memory, and a copy to or from it is part of the graph.
 *
 * Steps that need not wait for one another may be captured on several streams, in memory that no two buffers share: such a
 * graph is tried after the one of a single stream, and the faster of both is kept.
 *
 * A program of many sizes has buckets: sizes that are the same when they are rounded up share a graph, whose memory is
 * for those. Its kernels take sizes as arguments, so that its nodes get the grids and arguments of each call. Sizes of
 * library calls are the library's own matter: where those vary, each size has a graph of its own. */
#include "cuda.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Recordings of a program at once and in all; calls of others after which one makes room; calls that are measured of each
   kind, after one that is not; sizes that have recordings of their own before others share, and the least that are rounded
   up to a power of two, not of four. */
enum { MOST_RECORDINGS = 64, MOST_MADE = 128, STALE = 256, SAMPLES = 3, OWN_SIZES = 4, SMALL = 64 };
/* The part of a call's time that the host must take for a recording to be tried. */
#define HOST_PART 0.5
/* The part of its time on one stream below which a graph of several is kept. */
#define GAIN 0.97F

typedef enum { WATCHED, TRIED, KEPT, REFUSED } Phase;
/* On how many streams: one at first, several for a trial, then what was faster. */
typedef enum { FIRST, SEVERAL, ONE } Form;
/* What becomes of a slot: stays, has its address in kernels renewed, is copied to or from memory of the recording. */
typedef enum { STAYS, RENEWED, COPIED } Role;

/* Milliseconds of calls. state: whether one is measured now, or its events are not over yet. */
typedef struct {
    void *from, *to;
    struct timespec begun;
    float host, gpu, last_host;
    int samples;
    enum { FREE, RUNNING, ASKED } state;
} Trial;

/* What is known of a slot. */
enum { BY_CALL = 1, RESULT = 2, MOVES = 4, DRAWN = 8, DRAWS = 16, BY_KERNEL = 32, VALUE = 64 };

typedef struct {
    void *node;
    int step; /* of a kernel; -1: a copy */
    int slot; /* of a copy */
    CuCopyNode copy;
} Node;

struct Recording {
    struct Recording *next;
    void *stream, *exec, *last;
    PyObject *session; /* keeps graph and memory */
    Space *own;        /* of a stand-in, which has no memory of a graph's own */
    int64_t *registers, *last_sizes, *numbers; /* registers: of the sizes that memory is laid out for */
    void **inner, **outer; /* what kernels have for each slot, and the caller's address of those that are copied */
    uint8_t *roles, *renewed;
    Node *nodes;
    int node_count, calls, users, owns_exec, failed, shared;
    unsigned called_at; /* the program's count of calls */
    Phase phase;
    Form form;
    float single; /* milliseconds of a call by the graph of one stream, once several are tried */
    unsigned long thread; /* of the last call that ran the steps: libraries have handles a thread, made at its first call */
    Trial steps, graph;
};

static int same_machine(const FbMachine *machine) { return machine == &fb_cuda || (fb_cuda_stands_in() && machine == &fb_cpu); }

/* ---- measurements -------------------------------------------------------------------- */

static void begin_trial(Trial *trial, void *stream) {
    if (trial->state != FREE) return;
    if (trial->from == NULL && (fb_cuda_driver.new_event(&trial->from, 0) != 0 || fb_cuda_driver.new_event(&trial->to, 0) != 0)) return;
    if (fb_cuda_driver.record_event(trial->from, stream) != 0) return;
    trial->state = RUNNING;
    clock_gettime(CLOCK_MONOTONIC, &trial->begun);
}

static void end_trial(Trial *trial, void *stream, int complete) {
    struct timespec now;
    if (trial->state != RUNNING) return;
    clock_gettime(CLOCK_MONOTONIC, &now);
    trial->last_host = (float)((double)(now.tv_sec - trial->begun.tv_sec) * 1e3 + (double)(now.tv_nsec - trial->begun.tv_nsec) * 1e-6);
    trial->state = complete && fb_cuda_driver.record_event(trial->to, stream) == 0 ? ASKED : FREE;
}

/* Takes the times of a measured call that the GPU is done with. */
static void collect(Trial *trial) {
    float gpu;
    if (trial->state != ASKED || fb_cuda_driver.query_event(trial->to) != 0) return;
    trial->state = FREE;
    if (fb_cuda_driver.elapsed(&gpu, trial->from, trial->to) != 0) return;
    if (trial->samples == 0 || trial->last_host < trial->host) trial->host = trial->last_host;
    if (trial->samples == 0 || gpu < trial->gpu) trial->gpu = gpu;
    trial->samples++;
}

static float cost(const Trial *trial) { return trial->host > trial->gpu ? trial->host : trial->gpu; }

static void drop_trial(Trial *trial) {
    if (trial->from != NULL) fb_cuda_driver.destroy_event(trial->from);
    if (trial->to != NULL) fb_cuda_driver.destroy_event(trial->to);
    memset(trial, 0, sizeof *trial);
}

/* ---- recordings ------------------------------------------------------------------------ */

static void drop_space(const Program *program, Space *own) {
    if (own != NULL) fb_clear_space(program, own);
    fb_free_space(program, own);
}

/* Lets go of the graph; what was noted of the sizes stays. */
static void drop_graph(const Program *program, Recording *rec) {
    if (rec->exec != NULL && rec->owns_exec) fb_cuda_driver.destroy_graph(rec->exec);
    rec->exec = rec->last = NULL;
    rec->node_count = rec->failed = 0;
    Py_CLEAR(rec->session);
    drop_space(program, rec->own);
    free(rec->nodes);
    rec->own = NULL;
    rec->nodes = NULL;
}

static void free_recording(const Program *program, Recording *rec) {
    drop_graph(program, rec);
    drop_trial(&rec->steps);
    drop_trial(&rec->graph);
    free(rec);
}

void fb_recordings_clear(Executable *self) {
    while (self->recordings != NULL) {
        Recording *next = self->recordings->next;
        free_recording(&self->program, self->recordings);
        self->recordings = next;
    }
    free(self->moves);
    self->moves = NULL;
}

static int64_t rounded(int64_t size) {
    int64_t up = 1;
    while (up < size) up *= up < SMALL ? 4 : 2;
    return up;
}

static Recording *new_recording(const Program *program, const int64_t *sizes, void *stream, int shared) {
    size_t slots = program->slot_count, registers = program->register_count;
    Recording *rec = calloc(1, sizeof *rec + 8 * (2 * registers + 4 * slots) + 2 * slots);
    if (rec == NULL) return NULL;
    rec->registers = (int64_t *)(rec + 1);
    rec->last_sizes = rec->registers + registers;
    rec->numbers = rec->last_sizes + registers;
    rec->inner = (void **)(rec->numbers + 2 * slots);
    rec->outer = rec->inner + slots;
    rec->roles = (uint8_t *)(rec->outer + slots);
    rec->renewed = rec->roles + slots;
    rec->stream = stream;
    rec->shared = shared;
    for (size_t i = 0; i < registers; i++) rec->registers[i] = shared ? rounded(sizes[i]) : sizes[i];
    fb_fill_registers(program, rec->registers, NULL);
    return rec;
}

static int is_of(const Program *program, const Recording *rec, const int64_t *sizes) {
    for (int i = 0; i < program->register_count; i++) {
        if (rec->shared && program->registers[i].op != 's') continue;
        if (rec->registers[i] != (rec->shared ? rounded(sizes[i]) : sizes[i])) return 0;
    }
    return 1;
}

static int is_last(const Program *program, const Recording *rec, const int64_t *sizes) {
    return memcmp(rec->last_sizes, sizes, 8 * (size_t)program->register_count) == 0;
}

/* Whether a call's sizes fit the memory that is laid out for those that they are rounded up to, and leave as many launches. */
static int has_room(const Executable *self, const Recording *rec, const int64_t *sizes) {
    const Program *program = &self->program;
    if (!rec->shared || is_last(program, rec, sizes)) return 1;
    for (int i = 0; i < program->slot_count; i++) {
        if (program->slots[i].kind == SLOT_CONST || program->slots[i].kind == SLOT_DERIVED) continue;
        const int64_t bytes = fb_span(program, sizes, i), room = fb_span(program, rec->registers, i);
        if (bytes > room || (bytes == 0) != (room == 0)) return 0;
    }
    for (int i = 0; i < program->step_count; i++) {
        const Nums *grid = &program->steps[i].grid;
        for (int k = 0; k < grid->count; k++) {
            if (fb_num(sizes, grid->items[k]) <= 0) return 0;
        }
    }
    return 1;
}

/* The entry of a call's sizes and stream, first in the list from now on. Where the list is full, a graph for larger sizes
   does as well, or the entry goes that was not called for long; NULL where each was, so that some sizes at least have one. */
static Recording *entry_of(Executable *self, const Space *space, void *stream) {
    const Program *program = &self->program;
    Recording **place, *rec;
    for (int shared = 0; shared <= self->resizes; shared++) {
        for (place = &self->recordings; (rec = *place) != NULL; place = &rec->next) {
            if (rec->stream != stream || rec->shared != shared || !is_of(program, rec, space->registers)) continue;
            rec->called_at = ++self->calls;
            *place = rec->next;
            rec->next = self->recordings;
            return self->recordings = rec;
        }
    }
    int count = 1;
    for (place = &self->recordings; *place != NULL && count < MOST_RECORDINGS; count++) place = &(*place)->next;
    if (*place != NULL) {
        for (rec = self->recordings; rec != NULL; rec = rec->next) {
            if (rec->shared && rec->exec != NULL && rec->stream == stream && has_room(self, rec, space->registers)) return rec;
        }
        self->calls++;
        if ((*place)->users > 0 || self->calls - (*place)->called_at < STALE) return NULL;
        free_recording(program, *place);
        *place = NULL;
    }
    rec = new_recording(program, space->registers, stream, self->resizes && self->own_sizes++ >= OWN_SIZES);
    if (rec == NULL) return NULL;
    rec->called_at = ++self->calls;
    rec->next = self->recordings;
    return self->recordings = rec;
}

static void tell(const Executable *self, const Recording *rec, const char *what) {
    PyObject *kind, *value, *trace, *told;
    PyErr_Fetch(&kind, &value, &trace);
    told = PyObject_CallMethod(self->recorder, "told", "sOddi", what, value == NULL ? Py_None : value, (double)cost(&rec->steps),
                               (double)cost(&rec->graph), rec->shared);
    Py_XDECREF(told);
    PyErr_Restore(kind, value, trace);
    PyErr_Clear();
}

/* No recording for these sizes from now on, or none on several streams. */
static void refuse(const Executable *self, Recording *rec, const char *what) {
    tell(self, rec, what);
    drop_graph(&self->program, rec);
    drop_trial(&rec->graph);
    rec->phase = rec->form == SEVERAL ? WATCHED : REFUSED;
    if (rec->form == SEVERAL) rec->form = ONE;
    else drop_trial(&rec->steps);
}

/* ---- what a program touches --------------------------------------------------------------- */

static void mark_arguments(Executable *self, const Arg *args, int count, int mark) {
    for (int i = 0; i < count; i++) {
        if (args[i].kind == ARG_VIEW) self->moves[self->program.views[args[i].view].slot] |= mark;
        if (args[i].kind == ARG_LIST) mark_arguments(self, args[i].items, args[i].count, mark);
    }
}

int fb_recordable(Executable *self) {
    const Program *program = &self->program;
    self->moves = calloc(program->slot_count + 1, 1);
    self->card = -1;
    self->resizes = program->register_count > 0;
    if (self->moves == NULL) return -1;
    for (int i = 0; i < program->step_count; i++) {
        const Step *step = &program->steps[i];
        if (step->kind == STEP_KERNEL) self->card = step->device;
        for (int k = 0; k < step->count && step->kind == STEP_KERNEL; k++) {
            const int number = step->values && step->values[k] && program->slots[step->slots[k]].kind <= SLOT_CONST;
            self->moves[step->slots[k]] |= BY_KERNEL | (number ? VALUE : 0);
        }
        if (step->kind != STEP_CALL && step->kind != STEP_DRAW) continue;
        const int draws = step->kind == STEP_DRAW;
        self->resizes &= !draws && !step->call->varies; /* what a graph draws with is for one number of elements */
        mark_arguments(self, step->call->args, step->call->count, draws ? DRAWS : BY_CALL);
        for (int k = 0; k < step->call->out_count; k++) {
            if (step->call->outs[k] >= 0) self->moves[step->call->outs[k]] |= draws ? DRAWN : BY_CALL;
        }
    }
    for (int i = 0; i < program->device_count && self->card < 0; i++) {
        if (program->devices[i].machine == &fb_cuda) self->card = i;
    }
    for (int i = 0; i < program->output_count; i++) {
        if (program->outputs[i].kind != ARG_VIEW) continue;
        const int slot = program->views[program->outputs[i].view].slot;
        if (program->slots[slot].kind == SLOT_FRESH || program->slots[slot].kind == SLOT_CALL) self->moves[slot] |= RESULT;
    }
    int fits = self->card >= 0 && program->devices[self->card].machine == &fb_cuda;
    for (int i = 0; i < program->slot_count && fits; i++) {
        const Device *device = &program->devices[program->slots[i].device];
        const int unread = program->slots[i].kind == SLOT_CONST && !self->moves[i]; /* but by the recipe */
        fits = unread || program->slots[i].kind == SLOT_SCRATCH || self->moves[i] & (DRAWN | VALUE) || (same_machine(device->machine) && (device->machine == &fb_cpu || program->slots[i].device == self->card));
    }
    return fits;
}

static int is_input(const Program *program, int slot) { return program->slots[slot].kind == SLOT_INPUT; }

/* Notes which inputs are elsewhere than at the call before. */
static void note_moves(Executable *self, Recording *rec, const Space *space) {
    for (int i = 0; i < self->program.input_count; i++) {
        const int slot = self->program.inputs[i];
        if (rec->calls > 0 && rec->outer[slot] != space->pointers[slot]) self->moves[slot] |= MOVES;
        rec->outer[slot] = space->pointers[slot];
    }
}

/* ---- recording ----------------------------------------------------------------------------- */

static int fail(Recording *rec, const char *what) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, what);
    rec->failed = 1;
    return -1;
}

/* The node that the capture of a stream has come to; NULL where nothing was added since. */
int fb_newest(Recording *rec, void *stream, void **node) {
    int status;
    uint64_t id;
    void *graph, *const *nodes = NULL;
    const void *edges;
    size_t count = 0;
    *node = NULL;
    if (fb_cuda_driver.capture_info(stream, &status, &id, &graph, &nodes, &edges, &count) != 0 || status != 1) return -1;
    if (count != 1) return count == 0 ? 0 : -1;
    if (nodes[0] != rec->last) *node = nodes[0];
    rec->last = nodes[0];
    return 0;
}

static int is_odd(const Space *space, int slot) { return (uintptr_t)space->pointers[slot] % fb_cuda.alignment != 0; }

int fb_is_given(const Recording *rec, int slot) { return rec->roles[slot] == RENEWED; }

/* Needs no GIL; a failure is told when the steps are done. */
void fb_note_launch(const Program *program, Space *space, int step) {
    Recording *rec = space->into;
    const Step *row = &program->steps[step];
    Node node = {NULL, step, -1, {{0}, {0}, 0, 0, 0}};
    int renewed = rec->shared, odd = 0;
    for (int k = 0; k < row->count; k++) {
        renewed |= rec->roles[row->slots[k]] == RENEWED;
        odd |= !(row->values && row->values[k]) && is_odd(space, row->slots[k]);
    }
    if (fb_newest(rec, space->work[row->device].stream, &node.node) < 0 || (renewed && odd)) rec->failed = 1;
    if (rec->shared && node.node == NULL) rec->failed = 1; /* nothing to do for the sizes that others are rounded up to */
    if (renewed && node.node != NULL && !rec->failed) rec->nodes[rec->node_count++] = node;
}

/* Copies a slot's bytes between the caller's memory and the recording's, as a node; `sizes`: of the call. */
static int add_copy(const Program *program, const int64_t *sizes, Space *space, Recording *rec, int slot, int out, void *stream) {
    FbWork work = {stream, NULL, 0, 0};
    Node node = {NULL, -1, slot, {{0}, {0}, 0, 0, 0}};
    const int64_t bytes = fb_span(program, sizes, slot);
    void *inner = space->pointers[slot], *outer = rec->outer[slot];
    if (bytes == 0) return 0;
    if (fb_cuda.copy(&work, out ? outer : inner, out ? inner : outer, bytes) != 0) return -1;
    if (fb_newest(rec, stream, &node.node) < 0 || node.node == NULL) return -1;
    if (fb_cuda_driver.get_copy(node.node, &node.copy) != 0) return -1;
    rec->nodes[rec->node_count++] = node;
    return 0;
}

/* Which slots stay where they are; -1 where a library call writes to an input that moves. Kernels take no odd places. */
static int choose_roles(const Executable *self, Recording *rec, const Space *space) {
    const Program *program = &self->program;
    for (int i = 0; i < program->slot_count; i++) {
        if (is_input(program, i) && is_odd(space, i) && !(self->moves[i] & VALUE)) self->moves[i] |= MOVES | BY_CALL;
        const uint8_t seen = self->moves[i];
        rec->roles[i] = seen & VALUE ? RENEWED : STAYS;
        if (!(seen & RESULT) && !(is_input(program, i) && seen & MOVES)) continue;
        rec->roles[i] = seen & BY_CALL ? COPIED : RENEWED;
        if (rec->roles[i] == COPIED && is_input(program, i) && fb_is_written(program, i)) return -1;
    }
    return 0;
}

/* The steps, in a space of their own, while the stream captures. Results of `space` are where copies go at first. */
static int capture(Executable *self, const Space *space, Space *own, Recording *rec) {
    const Program *program = &self->program;
    void *stream = own->work[self->card].stream;
    memcpy(own->registers, rec->registers, 8 * (size_t)program->register_count);
    memcpy(rec->last_sizes, rec->registers, 8 * (size_t)program->register_count);
    own->into = rec;
    for (int i = 0; i < program->slot_count; i++) {
        const SlotKind kind = program->slots[i].kind;
        rec->outer[i] = space->pointers[i];
        if (fb_is_given(rec, i)) own->pointers[i] = space->pointers[i];
        if (kind != SLOT_INPUT && kind != SLOT_CONST && kind != SLOT_DERIVED) continue;
        own->pointers[i] = space->pointers[i];
        own->handles[i] = space->handles[i];
        own->objects[i] = Py_XNewRef(space->objects[i]);
        if (rec->roles[i] != COPIED) continue;
        own->handles[i] = NULL;
        if (fb_allocate(program, own, i) < 0 || add_copy(program, space->registers, own, rec, i, 0, stream) < 0) return fail(rec, "an input could not be copied");
    }
    if (rec->form == SEVERAL) {
        if (fb_spread(program, own) < 0) return fail(rec, "no room for branches");
        own->branches = PyObject_CallMethod(self->recorder, "several", "O", rec->session);
        if (own->branches == NULL) return -1;
    } else if (fb_reserve_arena(program, own) < 0) {
        return -1;
    }
    const int status = fb_run_plainly(program, own) < 0 || (own->branches != NULL && fb_turn(program, own, -1) < 0);
    Py_CLEAR(own->branches);
    if (status) return -1;
    if (rec->failed) return fail(rec, "a launch is no node of its own");
    for (int i = 0; i < program->slot_count; i++) {
        if (rec->roles[i] != COPIED || is_input(program, i)) continue;
        if (add_copy(program, space->registers, own, rec, i, 1, stream) < 0) return fail(rec, "a result could not be copied");
    }
    memcpy(rec->numbers, own->numbers, 16 * (size_t)program->slot_count);
    for (int i = 0; i < program->slot_count; i++) rec->inner[i] = self->moves[i] & (DRAWN | VALUE) ? &rec->numbers[2 * i] : own->pointers[i];
    return 0;
}

/* Ends the capture; the graph is ours to launch, or the session's own where `exec` comes with it. */
static int finish(const Executable *self, Recording *rec, int complete) {
    unsigned long long graph = 0, exec = 0;
    PyObject *kind, *value, *trace;
    PyErr_Fetch(&kind, &value, &trace);
    PyObject *ended = PyObject_CallMethod(self->recorder, "end", "Oi", rec->session, complete);
    if (!complete) PyErr_Restore(kind, value, trace);
    int status = ended == NULL || !complete || !PyArg_ParseTuple(ended, "KK", &graph, &exec) ? -1 : 0;
    Py_XDECREF(ended);
    if (status < 0) return -1;
    rec->exec = (void *)(uintptr_t)exec;
    rec->owns_exec = exec == 0;
    return exec == 0 && fb_cuda_done(fb_cuda_driver.instantiate(&rec->exec, (void *)(uintptr_t)graph, 1), "graph") < 0 ? fail(rec, fb_cuda.error()) : 0;
}

static int record(Executable *self, const Space *space, Recording *rec) {
    const Program *program = &self->program;
    Space *own = fb_new_space(program);
    if (own == NULL) return -1;
    drop_graph(program, rec);
    self->recordings_made++;
    rec->users++;
    rec->nodes = malloc(((size_t)program->step_count + 2 * (size_t)program->slot_count) * sizeof *rec->nodes);
    int status = rec->nodes == NULL ? fail(rec, "no memory") : choose_roles(self, rec, space) < 0 ? fail(rec, "a library call writes to an input") : 0;
    if (status == 0) {
        rec->session = PyObject_CallMethod(self->recorder, "begin", "iK", program->devices[self->card].index, (unsigned long long)(uintptr_t)rec->stream);
        status = rec->session == NULL ? -1 : 0;
    }
    if (status == 0) {
        int entered = fb_enter(program, own) == 0;
        status = entered ? capture(self, space, own, rec) : -1;
        if (!fb_cuda_stands_in()) fb_clear_space(program, own);
        if (entered) fb_leave(program, own);
        if (finish(self, rec, status == 0) < 0) status = -1;
    }
    rec->own = fb_cuda_stands_in() && status == 0 ? own : NULL;
    if (rec->own == NULL) drop_space(program, own);
    rec->users--;
    return status;
}

/* ---- replays ---------------------------------------------------------------------------------- */

/* Whether what the graph has addresses of is still there, and where kernels take it; inputs that are not, move. */
static int in_place(Executable *self, const Recording *rec, const Space *space) {
    const Program *program = &self->program;
    int same = 1;
    for (int i = 0; i < program->slot_count; i++) {
        const SlotKind kind = program->slots[i].kind;
        const int odd = kind == SLOT_INPUT && rec->roles[i] == RENEWED && is_odd(space, i);
        if (kind > SLOT_DERIVED || self->moves[i] & VALUE || (!odd && (rec->roles[i] != STAYS || rec->inner[i] == space->pointers[i]))) continue;
        if (kind == SLOT_INPUT) self->moves[i] |= MOVES | (odd ? BY_CALL : 0);
        same = 0;
    }
    return same;
}

/* Whether no input that is copied lies in memory that the program writes. */
static int is_apart(const Program *program, const Recording *rec, const Space *space) {
    for (int i = 0; i < program->input_count; i++) {
        const int slot = program->inputs[i];
        const char *place = space->pointers[slot];
        for (int k = 0; k < program->mutated_count && rec->roles[slot] == COPIED; k++) {
            const char *other = space->pointers[program->mutated[k]];
            const int64_t bytes = fb_span(program, space->registers, slot);
            if (place < other + fb_span(program, space->registers, program->mutated[k]) && other < place + bytes) return 0;
        }
    }
    return 1;
}

static int differ(const Nums *nums, const int64_t *before, const int64_t *now) {
    for (int i = 0; i < nums->count; i++) {
        if (fb_num(before, nums->items[i]) != fb_num(now, nums->items[i])) return 1;
    }
    return 0;
}

/* Tells the graph the addresses and the sizes of this call. */
static int renew(const Executable *self, Recording *rec, Space *space) {
    const Program *program = &self->program;
    const int resized = !is_last(program, rec, space->registers);
    void *context = fb_cuda_context(program->devices[self->card].index);
    for (int i = 0; i < program->slot_count; i++) {
        void **address = rec->roles[i] == COPIED ? &rec->outer[i] : &rec->inner[i], *number = &rec->numbers[2 * i];
        if (self->moves[i] & VALUE) {
            const size_t size = (size_t)program->slots[i].dtype->size;
            rec->renewed[i] = memcmp(number, space->pointers[i], size) != 0;
            memcpy(number, space->pointers[i], size);
            continue;
        }
        rec->renewed[i] = rec->roles[i] != STAYS && *address != space->pointers[i];
        if (rec->renewed[i]) *address = space->pointers[i];
    }
    for (int i = 0; i < rec->node_count; i++) {
        Node *node = &rec->nodes[i];
        if (node->step < 0) {
            if (!rec->renewed[node->slot] && !resized) continue;
            CuPlace *place = is_input(program, node->slot) ? &node->copy.from : &node->copy.to;
            place->device = (uint64_t)(uintptr_t)rec->outer[node->slot];
            node->copy.width = (size_t)fb_span(program, space->registers, node->slot);
            if (fb_cuda_done(fb_cuda_driver.set_copy(rec->exec, node->node, &node->copy, context), "copy of a graph") < 0) return -1;
            continue;
        }
        const Step *step = &program->steps[node->step];
        int renewed = resized && (differ(&step->sizes, rec->last_sizes, space->registers) || differ(&step->grid, rec->last_sizes, space->registers));
        for (int k = 0; k < step->count; k++) renewed |= rec->renewed[step->slots[k]];
        if (!renewed) continue;
        int64_t grid[3];
        FbLaunch launch = fb_launch_of(space, step, rec->inner, grid);
        if (fb_cuda_set_kernel(rec->exec, node->node, &launch) < 0) return -1;
    }
    memcpy(rec->last_sizes, space->registers, 8 * (size_t)program->register_count);
    return 0;
}

static int launch(Recording *rec) {
    if (rec->owns_exec) return fb_cuda_done(fb_cuda_driver.launch_graph(rec->exec, rec->stream), "graph");
    PyObject *done = PyObject_CallMethod(rec->session, "replay", NULL);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* Gives each result memory (hold: 1), where it has none, or lets go of all of it (0), so that the steps may run. */
static int hold_results(const Executable *self, Space *space, int hold) {
    int status = 0;
    for (int i = 0; i < self->program.slot_count && status == 0; i++) {
        if (!(self->moves[i] & RESULT)) continue;
        if (!hold) fb_release(&self->program, space, i);
        else if (!space->owned[i]) status = fb_allocate(&self->program, space, i);
    }
    return status;
}

static int replay(Executable *self, Recording *rec, Space *space) {
    rec->users++;
    int status = hold_results(self, space, 1);
    if (status == 0 && (renew(self, rec, space) < 0 || launch(rec) < 0)) status = fail(rec, fb_cuda.error());
    if (status < 0) hold_results(self, space, 0);
    rec->users--;
    return status;
}

/* ---- one call ------------------------------------------------------------------------------------ */

static int has_branches(const Executable *self, const Recording *rec) {
    return self->branches && !rec->shared && fb_is_spread(&self->program, rec->registers);
}

static int is_ready(Executable *self, Recording *rec) {
    if (self->recordings_made >= MOST_MADE) return 0;
    if (self->forced) return rec->calls > 1;
    return rec->steps.samples >= SAMPLES;
}

/* Whether there is a graph to replay, recorded now if it is time. */
static int has_graph(Executable *self, Recording *rec, Space *space) {
    if (rec->phase == WATCHED) {
        note_moves(self, rec, space);
        const unsigned long before = rec->thread;
        rec->thread = PyThread_get_thread_ident();
        rec->calls++;
        if (!is_ready(self, rec) || rec->thread != before) return 0;
        if (!self->forced && rec->steps.host < HOST_PART * rec->steps.gpu && (rec->form == ONE || !has_branches(self, rec))) {
            refuse(self, rec, "the GPU takes longer than the host");
            return 0;
        }
        if (hold_results(self, space, 1) < 0 || record(self, space, rec) < 0) {
            hold_results(self, space, 0);
            refuse(self, rec, "not recordable");
            return 0;
        }
        tell(self, rec, "recorded");
        rec->phase = self->forced && (rec->form == ONE || !has_branches(self, rec)) ? KEPT : TRIED;
        return 1;
    }
    if (rec->phase == REFUSED) return 0;
    if (!in_place(self, rec, space)) {
        drop_graph(&self->program, rec);
        rec->phase = WATCHED;
        return 0;
    }
    return is_apart(&self->program, rec, space);
}

static void judge(Executable *self, Recording *rec) {
    if (rec->phase != TRIED || rec->graph.samples < SAMPLES) return;
    const float now = cost(&rec->graph);
    const int several = rec->form == SEVERAL, more = rec->form == FIRST && self->recordings_made + 2 <= MOST_MADE && has_branches(self, rec);
    if (!more && ((!self->forced && now > cost(&rec->steps)) || (several && now > GAIN * rec->single))) {
        refuse(self, rec, several ? "slower on several streams" : "slower than the steps");
        return;
    }
    tell(self, rec, more ? "tried on one stream" : several ? "kept on several streams" : "kept");
    drop_trial(&rec->graph);
    rec->phase = more ? WATCHED : KEPT;
    if (more) rec->form = SEVERAL, rec->single = now, drop_graph(&self->program, rec);
    else drop_trial(&rec->steps);
}

int fb_replay(Executable *self, Space *space, Recording **watched) {
    void *stream = space->work[self->card].stream;
    if (fb_cuda_captures(stream) != 0) return 0;
    if (fb_host.has_callbacks != NULL && fb_host.has_callbacks()) return 0;
    for (int i = 0; i < self->program.slot_count; i++) {
        if (self->moves[i] & DRAWS && is_odd(space, i)) return 0; /* what eager draws for it depends on its address */
    }
    Recording *rec = entry_of(self, space, stream);
    if (rec == NULL || rec->users > 0 || !has_room(self, rec, space->registers)) return 0;
    collect(&rec->steps);
    collect(&rec->graph);
    judge(self, rec);
    if (!has_graph(self, rec, space)) {
        if (rec->phase != WATCHED || self->forced || rec->calls < 2 || self->recordings_made >= MOST_MADE) return 0;
        rec->users++;
        *watched = rec;
        begin_trial(&rec->steps, stream);
        return 0;
    }
    if (rec->phase == TRIED) begin_trial(&rec->graph, stream);
    int status = replay(self, rec, space);
    end_trial(&rec->graph, stream, status == 0);
    if (status == 0) return 1;
    refuse(self, rec, "replay failed");
    return 0;
}

void fb_watched(Recording *rec, int complete) {
    end_trial(&rec->steps, rec->stream, complete);
    rec->users--;
}
