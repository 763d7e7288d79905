/* The device callback and its two rings: what runs on the sound card's thread.
 *
 * The callback has PortAudio's ABI and is handed to a stream by address, so that the interpreter lock can never
 * make a gap: it takes no lock, allocates nothing, calls nothing that could wait and never enters Python.
 *
 * Threads. Three parties share one `State`: the callback (one thread at a time), one reader of the input ring, one
 * writer of the output ring. The last two are Python threads and serialised by the interpreter lock. Every shared
 * word has exactly one writing party, so plain atomic loads and stores suffice; there is no read-modify-write.
 *
 *   written by the callback: captured, played, claimed, in_stored, in_offset, in_dropping, stamp, its counters
 *   written by the reader:   in_taken, wanted
 *   written by the writer:   written, first_due, silenced, its counters
 *
 * Output ring. Cell `p & mask` belongs to output position p. The callback reads only positions below `written`, the
 * writer touches only positions at or above it, so no sample is ever read and written at once. A position that is
 * below `written` but got no sound holds NaN: written sound is always finite, so NaN means "nothing here".
 *
 * Rewinding needs more than that, because `written` goes down. The callback announces the range it is about to play
 * (`claimed`) and then looks at `written`; the writer lowers `written` and then looks at `claimed`. Both pairs are
 * sequentially consistent, so at least one side sees the other (Dekker): either the callback plays the lowered range
 * (silence), or the writer learns that these positions are spent and stays above them.
 */

#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030B0000
#endif
#ifndef _WIN32
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif
#ifdef __APPLE__
#define _DARWIN_C_SOURCE
#endif
#endif
#ifndef MYNA_CORE_ONLY /* tools/core_stress.c takes the callback and the rings without Python */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#endif

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef _WIN32
#include <windows.h>
#else
#include <time.h>
#endif

/* --- atomics ------------------------------------------------------------------------------------------------- */

#if defined(_MSC_VER) && !defined(__clang__)
/* MSVC's C11 atomics are still experimental. Interlocked operations are full barriers on every architecture; the
 * callback does about thirty of them, which is nothing beside a period of milliseconds. */
typedef volatile LONG64 Word;
static int64_t get(Word *word) { return InterlockedOr64(word, 0); }
static void put(Word *word, int64_t value) { InterlockedExchange64(word, value); }
static int64_t get_ordered(Word *word) { return InterlockedOr64(word, 0); }
static void put_ordered(Word *word, int64_t value) { InterlockedExchange64(word, value); }
#else
#include <stdatomic.h>
typedef _Atomic int64_t Word;
static int64_t get(Word *word) { return atomic_load_explicit(word, memory_order_acquire); }
static void put(Word *word, int64_t value) { atomic_store_explicit(word, value, memory_order_release); }
static int64_t get_ordered(Word *word) { return atomic_load_explicit(word, memory_order_seq_cst); }
static void put_ordered(Word *word, int64_t value) { atomic_store_explicit(word, value, memory_order_seq_cst); }
#endif

/* Only for a word that this party alone writes. */
static void add(Word *word, int64_t amount)
{
    if (amount)
        put(word, get(word) + amount);
}

static void raise_to(Word *word, int64_t value)
{
    if (value > get(word))
        put(word, value);
}

/* --- state --------------------------------------------------------------------------------------------------- */

#define FADE_FRAMES 64
#define MAX_CHANNELS 64
#define FROZEN_NS 500000000 /* without a callback for so long, what was written before is not played any more */
#define NEVER INT64_MAX
#define MAX_POSITION ((int64_t)1 << 62) /* three million years at 48 kHz: sums of two positions cannot overflow */

typedef struct {
    double rate_hz;
    int in_channels, out_channels, in_mapped, out_mapped, paced;
    int in_map[MAX_CHANNELS], out_map[MAX_CHANNELS];
    int64_t capacity, mask;
    float *in_ring, *out_ring;

    /* Input. Frames are numbered twice: by position (every frame of the device) and by how many were stored before
     * them. The two differ by in_offset, which grows by each dropped stretch; as a new stretch only starts in an
     * empty ring, one offset holds for all that is in the ring. */
    Word captured, in_stored, in_offset, in_dropping, in_taken;
    Word wanted; /* frames the reader waits for right now, 0: it does not wait */
    Word in_dropped, in_full_events, nonfinite_in;

    /* Output. */
    Word played, claimed, written, first_due, silenced;
    Word late_frames, dry_frames, dry_events, out_full_frames, nonfinite_out;

    /* The callback's own memory: the fade, whether it is inside a dry stretch, and below which position what was
     * written is too old to be played. */
    float last, held;
    int64_t stale_below;
    int rising, falling, in_dry;

    /* The stamp is a seqlock: odd while it is being written. */
    Word stamp_turn, stamp_ns, stamp_captured, stamp_played;
    Word callbacks, last_frames, max_callback_ns, max_gap_ns;

    int64_t given_ns; /* the time of the next call when a hand-driven clock calls; 0: ask the system */
} State;

/* The clock of Python's time.monotonic_ns on each platform (on Windows from Python 3.13). */
static int64_t now_ns(void)
{
#if defined(_WIN32)
    LARGE_INTEGER ticks, per_second;
    QueryPerformanceCounter(&ticks);
    QueryPerformanceFrequency(&per_second);
    return (ticks.QuadPart / per_second.QuadPart) * 1000000000LL +
           (ticks.QuadPart % per_second.QuadPart) * 1000000000LL / per_second.QuadPart;
#elif defined(__APPLE__)
    return (int64_t)clock_gettime_nsec_np(CLOCK_UPTIME_RAW);
#else
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000LL + now.tv_nsec;
#endif
}

static void sleep_ns(int64_t ns)
{
    if (ns <= 0)
        return;
#ifdef _WIN32
    Sleep((DWORD)((ns + 999999) / 1000000));
#else
    struct timespec pause = {.tv_sec = (time_t)(ns / 1000000000LL), .tv_nsec = (long)(ns % 1000000000LL)};
    nanosleep(&pause, NULL);
#endif
}

/* --- the callback -------------------------------------------------------------------------------------------- */

static void capture(State *state, const float *device, int64_t frames)
{
    int64_t position = get(&state->captured);
    int64_t stored = get(&state->in_stored);
    int64_t room = state->capacity - (stored - get(&state->in_taken));
    if (get(&state->in_dropping)) {
        if (room < state->capacity)
            room = 0; /* wait until the reader has emptied it: one long gap instead of many short ones */
        else {
            put(&state->in_offset, position - stored);
            put(&state->in_dropping, 0);
        }
    }
    int64_t kept = frames < room ? frames : room;
    int64_t nonfinite = 0;
    double scale = 1.0 / state->in_mapped;
    for (int64_t i = 0; i < kept; i++) {
        double sum = 0.0; /* double: the mean of finite floats is finite, their float sum need not be */
        for (int c = 0; device && c < state->in_mapped; c++) {
            float sample = device[i * state->in_channels + state->in_map[c]];
            if (isfinite(sample))
                sum += sample;
            else
                nonfinite++;
        }
        state->in_ring[(stored + i) & state->mask] = (float)(sum * scale);
    }
    add(&state->nonfinite_in, nonfinite);
    if (kept < frames) {
        add(&state->in_dropped, frames - kept);
        if (!get(&state->in_dropping))
            add(&state->in_full_events, 1);
    }
    put(&state->in_stored, stored + kept);
    if (kept < frames)
        put(&state->in_dropping, 1); /* after the frames: who sees it sees the last frame before the gap */
    put(&state->captured, position + frames);
}

static void play(State *state, float *device, int64_t frames)
{
    int64_t position = get(&state->played);
    put_ordered(&state->claimed, position + frames);
    int64_t written = get_ordered(&state->written);
    int64_t first_due = get(&state->first_due);
    int silenced = get(&state->silenced) != 0;
    int64_t dry = 0;
    if (device)
        memset(device, 0, (size_t)frames * (size_t)state->out_channels * sizeof(float));
    for (int64_t i = 0; i < frames; i++) {
        int64_t at = position + i;
        float value = !silenced && at < written && at >= state->stale_below ? state->out_ring[at & state->mask] : NAN;
        float out;
        if (!isnan(value)) {
            /* What is left of a fade-out rides on: after a gap shorter than a fade the two ramps overlap, and
             * their gains never sum to more than one. */
            if (state->rising < FADE_FRAMES)
                state->rising++;
            if (state->falling > 0)
                state->falling--;
            out = value * ((float)state->rising / FADE_FRAMES) + state->held * ((float)state->falling / FADE_FRAMES);
            state->in_dry = 0;
        } else {
            if (state->rising > 0) { /* sound stopped here: fade out from the very value played last */
                state->held = state->last;
                state->falling = FADE_FRAMES;
                state->rising = 0;
            }
            if (state->falling > 0)
                state->falling--;
            out = state->held * ((float)state->falling / FADE_FRAMES);
            if (silenced || at < first_due)
                state->in_dry = 0;
            else {
                dry++;
                if (!state->in_dry)
                    add(&state->dry_events, 1);
                state->in_dry = 1;
            }
        }
        state->last = out;
        for (int c = 0; device && c < state->out_mapped; c++)
            device[i * state->out_channels + state->out_map[c]] = out;
    }
    add(&state->dry_frames, dry);
    put(&state->played, position + frames);
}

/* PaStreamCallback; the time info and the flags are not used: hosts fill them with anything. */
static int device_callback(
    const void *input, void *output, unsigned long frames, const void *times, unsigned long flags, void *userdata)
{
    State *state = userdata;
    int64_t begun = now_ns();
    int64_t ns = state->given_ns ? state->given_ns : begun;
    (void)times;
    (void)flags;
    if (get(&state->callbacks) && ns - get(&state->stamp_ns) > FROZEN_NS) {
        /* The device stood still, or this process did: the sound in the ring belongs to the time before, and so does
         * the value to fade from. */
        state->stale_below = get_ordered(&state->written);
        state->last = state->held = 0.0f;
        state->rising = state->falling = 0;
    }
    if (state->in_channels)
        capture(state, input, (int64_t)frames);
    if (state->out_channels)
        play(state, output, (int64_t)frames);

    if (get(&state->callbacks))
        raise_to(&state->max_gap_ns, ns - get(&state->stamp_ns));
    int64_t turn = get(&state->stamp_turn);
    put(&state->stamp_turn, turn + 1);
    put(&state->stamp_ns, ns);
    put(&state->stamp_captured, get(&state->captured));
    put(&state->stamp_played, get(&state->played));
    put(&state->stamp_turn, turn + 2);
    put(&state->last_frames, (int64_t)frames);
    add(&state->callbacks, 1);
    raise_to(&state->max_callback_ns, now_ns() - begun);
    return 0; /* paContinue */
}

/* --- the reader's and the writer's side ---------------------------------------------------------------------- */

static void take_stamp(State *state, int64_t *ns, int64_t *captured, int64_t *played)
{
    for (int tries = 1;; tries++) {
        int64_t turn = get(&state->stamp_turn);
        *ns = get(&state->stamp_ns);
        *captured = get(&state->stamp_captured);
        *played = get(&state->stamp_played);
        if (!(turn & 1) && get(&state->stamp_turn) == turn)
            return;
        if (tries % 64 == 0)
            sleep_ns(20000); /* the callback's thread was set aside in the middle of three stores */
    }
}

static int64_t readable(State *state)
{
    return get(&state->in_stored) - get(&state->in_taken);
}

/* Frames wait, and no more will come before they are taken. */
static int before_gap(State *state)
{
    return get(&state->in_dropping) && readable(state) > 0;
}

static int64_t read_frames(State *state, float *into, int64_t frames, int64_t *position)
{
    int64_t taken = get(&state->in_taken);
    int64_t stored = get(&state->in_stored);
    int64_t count = stored - taken < frames ? stored - taken : frames;
    *position = taken + get(&state->in_offset); /* after in_stored: see the offset's own note */
    if (into) {
        int64_t at = taken & state->mask;
        int64_t straight = count < state->capacity - at ? count : state->capacity - at;
        memcpy(into, state->in_ring + at, (size_t)straight * sizeof(float));
        memcpy(into + straight, state->in_ring, (size_t)(count - straight) * sizeof(float));
    }
    put(&state->in_taken, taken + count);
    return count;
}

static int64_t write_frames(State *state, int64_t position, const float *from, int64_t frames)
{
    int64_t end = position + frames;
    int64_t spent = get_ordered(&state->claimed);
    int64_t limit = get(&state->played) + state->capacity; /* cells below `played` are free again */
    int64_t old = get(&state->written);
    int64_t begin = position > spent ? position : spent;
    if (begin < old)
        begin = old;
    if (limit < end) {
        add(&state->out_full_frames, end - (limit > position ? limit : position));
        end = limit;
    }
    if (end <= begin) {
        if (spent > position)
            add(&state->late_frames, (spent < position + frames ? spent : position + frames) - position);
        return 0;
    }
    for (int64_t at = old > spent ? old : spent; at < begin; at++)
        state->out_ring[at & state->mask] = NAN;
    int64_t nonfinite = 0;
    for (int64_t at = begin; at < end; at++) {
        float value = from[at - position];
        if (!isfinite(value)) {
            value = 0.0f;
            nonfinite++;
        }
        state->out_ring[at & state->mask] = value;
    }
    add(&state->nonfinite_out, nonfinite);
    if (get(&state->first_due) == NEVER)
        put(&state->first_due, begin);
    spent = get_ordered(&state->claimed); /* the callback may have passed while we copied */
    put_ordered(&state->written, end);
    if (spent > position)
        add(&state->late_frames, (spent < position + frames ? spent : position + frames) - position);
    if (spent > begin)
        begin = spent < end ? spent : end;
    return end - begin;
}

static int64_t rewind_frames(State *state)
{
    int64_t old = get(&state->written);
    int64_t spent = get_ordered(&state->claimed);
    put(&state->first_due, NEVER); /* the silence that follows is wanted: not a dry event */
    if (old <= spent)
        return 0;
    put_ordered(&state->written, spent);
    /* A callback that claimed in between may have seen the old end: its positions are spent, stay above them. */
    int64_t now_spent = get_ordered(&state->claimed);
    if (now_spent > spent) {
        spent = now_spent < old ? now_spent : old;
        put_ordered(&state->written, spent);
    }
    return old - spent;
}

/* Sleep until `frames` are readable, a gap must be taken, or the deadline has passed. */
static int wait_readable(State *state, int64_t frames, int64_t timeout_ns)
{
    const int64_t shortest = 200000, longest = state->paced ? 5000000 : shortest;
    int64_t deadline = now_ns() + timeout_ns;
    put(&state->wanted, frames);
    for (;;) {
        int64_t missing = frames - readable(state);
        int64_t now = now_ns();
        if (missing <= 0 || before_gap(state) || now >= deadline) {
            put(&state->wanted, 0);
            return missing <= 0 || before_gap(state);
        }
        /* Frames come a period at a time, the next one a period after the last callback. */
        int64_t period = get(&state->last_frames), ns = shortest;
        if (period > 0) {
            double ahead = ceil((double)missing / (double)period) * (double)period / state->rate_hz * 1e9;
            ns = ahead < 1e9 ? get(&state->stamp_ns) + (int64_t)ahead - now : longest;
        }
        /* Not longer than a few ms: the period may change. */
        ns = ns < shortest ? shortest : ns > longest ? longest : ns;
        sleep_ns(ns < deadline - now ? ns : deadline - now);
    }
}

#ifndef MYNA_CORE_ONLY
/* --- Python -------------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    State *state;
} Core;

static void free_state(State *state)
{
    if (!state)
        return;
    free(state->in_ring);
    free(state->out_ring);
    free(state);
}

static int take_map(PyObject *map, int channels, int *into, const char *name)
{
    Py_ssize_t count = PySequence_Size(map);
    if (count < 0)
        return -1;
    if (channels < 0 || channels > MAX_CHANNELS || count > MAX_CHANNELS) {
        PyErr_Format(PyExc_ValueError, "%s: at most %d channels", name, MAX_CHANNELS);
        return -1;
    }
    if ((channels == 0) != (count == 0)) {
        PyErr_Format(PyExc_ValueError, "%s: %zd entries for %d channels", name, count, channels);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = PySequence_GetItem(map, i);
        if (!item)
            return -1;
        long channel = PyLong_AsLong(item);
        Py_DECREF(item);
        if (channel == -1 && PyErr_Occurred())
            return -1;
        if (channel < 0 || channel >= channels) {
            PyErr_Format(PyExc_ValueError, "%s: channel %ld is not in 0..%d", name, channel, channels - 1);
            return -1;
        }
        into[i] = (int)channel;
    }
    return (int)count;
}

static PyObject *core_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {
        "rate_hz", "in_channels", "out_channels", "in_map", "out_map", "capacity_frames", "paced", NULL};
    double rate_hz;
    int in_channels, out_channels;
    PyObject *in_map, *out_map;
    Py_ssize_t capacity;
    int paced = 1;
    if (PyTuple_Size(args) != 0)
        return PyErr_Format(PyExc_TypeError, "Core takes keyword arguments only");
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "diiOOn|p:Core", names, &rate_hz, &in_channels, &out_channels,
                                     &in_map, &out_map, &capacity, &paced))
        return NULL;
    if (!(rate_hz > 0.0) || !isfinite(rate_hz))
        return PyErr_Format(PyExc_ValueError, "rate_hz must be above 0");
    if (capacity < 1 || capacity > ((Py_ssize_t)1 << 30) || (capacity & (capacity - 1)))
        return PyErr_Format(PyExc_ValueError, "capacity_frames must be a power of two, not %zd", capacity);
    if (in_channels == 0 && out_channels == 0)
        return PyErr_Format(PyExc_ValueError, "a stream needs a direction");

    State *state = calloc(1, sizeof(State));
    if (!state)
        return PyErr_NoMemory();
    state->rate_hz = rate_hz;
    state->in_channels = in_channels;
    state->out_channels = out_channels;
    state->paced = paced;
    state->capacity = capacity;
    state->mask = capacity - 1;
    put(&state->first_due, NEVER);
    state->in_mapped = take_map(in_map, in_channels, state->in_map, "in_map");
    state->out_mapped = state->in_mapped < 0 ? -1 : take_map(out_map, out_channels, state->out_map, "out_map");
    if (state->out_mapped < 0) {
        free_state(state);
        return NULL;
    }
    state->in_ring = in_channels ? malloc((size_t)capacity * sizeof(float)) : NULL;
    state->out_ring = out_channels ? malloc((size_t)capacity * sizeof(float)) : NULL;
    if ((in_channels && !state->in_ring) || (out_channels && !state->out_ring)) {
        free_state(state);
        return PyErr_NoMemory();
    }
    /* Writing every cell also maps the pages, so that no page fault waits for the callback. */
    for (Py_ssize_t i = 0; i < capacity; i++) {
        if (state->in_ring)
            state->in_ring[i] = 0.0f;
        if (state->out_ring)
            state->out_ring[i] = NAN;
    }
    allocfunc alloc = (allocfunc)(uintptr_t)PyType_GetSlot(type, Py_tp_alloc);
    Core *self = (Core *)alloc(type, 0);
    if (!self) {
        free_state(state);
        return NULL;
    }
    self->state = state;
    return (PyObject *)self;
}

static void core_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    free_state(((Core *)self)->state);
    freefunc release = (freefunc)(uintptr_t)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF((PyObject *)type);
}

/* A C-contiguous float32 buffer; the number of its items, or -1 with an exception. */
static Py_ssize_t take_floats(PyObject *object, Py_buffer *view, int writable)
{
    int flags = PyBUF_FORMAT | PyBUF_C_CONTIGUOUS | (writable ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(object, view, flags) < 0)
        return -1;
    const char *format = view->format ? view->format : "B";
    if (*format == '@' || *format == '=' || *format == '<')
        format++;
    if (view->itemsize != (Py_ssize_t)sizeof(float) || strcmp(format, "f") != 0) {
        PyErr_Format(PyExc_TypeError, "expected a float32 buffer, not items of format '%s'",
                     view->format ? view->format : "B");
        PyBuffer_Release(view);
        return -1;
    }
    return view->len / view->itemsize;
}

static int refuse_direction(int channels, const char *name)
{
    if (channels)
        return 0;
    PyErr_Format(PyExc_ValueError, "this core has no %s", name);
    return 1;
}

static PyObject *core_call(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"inp", "out", "frames", "now_ns", NULL};
    State *state = ((Core *)self)->state;
    PyObject *inp, *out;
    Py_ssize_t frames;
    long long given_ns = 0;
    Py_buffer in_view, out_view;
    int have_in = 0, have_out = 0, result = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOn|L:call", names, &inp, &out, &frames, &given_ns))
        return NULL;
    if (frames < 0)
        return PyErr_Format(PyExc_ValueError, "frames must not be negative");
    if (inp != Py_None) {
        Py_ssize_t items = take_floats(inp, &in_view, 0);
        have_in = items >= 0;
        if (items >= 0 && items / (state->in_channels ? state->in_channels : 1) < frames)
            PyErr_Format(PyExc_ValueError, "inp holds %zd samples, too few for %zd frames", items, frames);
    }
    if (!PyErr_Occurred() && out != Py_None) {
        Py_ssize_t items = take_floats(out, &out_view, 1);
        have_out = items >= 0;
        if (items >= 0 && items / (state->out_channels ? state->out_channels : 1) < frames)
            PyErr_Format(PyExc_ValueError, "out holds %zd samples, too few for %zd frames", items, frames);
    }
    if (!PyErr_Occurred()) {
        state->given_ns = given_ns;
        result = device_callback(have_in ? in_view.buf : NULL, have_out ? out_view.buf : NULL,
                                 (unsigned long)frames, NULL, 0, state);
        state->given_ns = 0;
    }
    if (have_in)
        PyBuffer_Release(&in_view);
    if (have_out)
        PyBuffer_Release(&out_view);
    return PyErr_Occurred() ? NULL : PyLong_FromLong(result);
}

static PyObject *core_wait(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"frames", "timeout_ms", NULL};
    State *state = ((Core *)self)->state;
    Py_ssize_t frames;
    double timeout_ms;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "nd:wait", names, &frames, &timeout_ms))
        return NULL;
    if (!(timeout_ms <= 1e9))
        return PyErr_Format(PyExc_ValueError, "timeout_ms must be a number up to 1e9");
    int64_t timeout_ns = timeout_ms > 0.0 ? (int64_t)(timeout_ms * 1e6) : 0;
    int ready;
    Py_BEGIN_ALLOW_THREADS
    ready = wait_readable(state, frames, timeout_ns);
    Py_END_ALLOW_THREADS
    return PyBool_FromLong(ready);
}

static PyObject *core_read(PyObject *self, PyObject *into)
{
    State *state = ((Core *)self)->state;
    Py_buffer view;
    int64_t position;
    if (refuse_direction(state->in_channels, "input"))
        return NULL;
    Py_ssize_t items = take_floats(into, &view, 1);
    if (items < 0)
        return NULL;
    int64_t frames = read_frames(state, view.buf, items, &position);
    PyBuffer_Release(&view);
    return Py_BuildValue("(LL)", (long long)frames, (long long)position);
}

static PyObject *core_readable(PyObject *self, PyObject *unused)
{
    (void)unused;
    return PyLong_FromLongLong(readable(((Core *)self)->state));
}

static PyObject *core_wanted(PyObject *self, PyObject *unused)
{
    (void)unused;
    return PyLong_FromLongLong(get(&((Core *)self)->state->wanted));
}

static PyObject *core_discard(PyObject *self, PyObject *count)
{
    int64_t position;
    Py_ssize_t frames = PyLong_AsSsize_t(count);
    if (frames == -1 && PyErr_Occurred())
        return NULL;
    if (frames < 0)
        return PyErr_Format(PyExc_ValueError, "frames must not be negative");
    return PyLong_FromLongLong(read_frames(((Core *)self)->state, NULL, frames, &position));
}

static PyObject *core_write(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"position", "frames", NULL};
    State *state = ((Core *)self)->state;
    long long position;
    PyObject *frames;
    Py_buffer view;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "LO:write", names, &position, &frames))
        return NULL;
    if (refuse_direction(state->out_channels, "output"))
        return NULL;
    if (position > MAX_POSITION || position < -MAX_POSITION)
        return PyErr_Format(PyExc_ValueError, "position %lld is out of range", position);
    Py_ssize_t items = take_floats(frames, &view, 0);
    if (items < 0)
        return NULL;
    int64_t placed = write_frames(state, position, view.buf, items);
    PyBuffer_Release(&view);
    return PyLong_FromLongLong(placed);
}

static PyObject *core_rewind(PyObject *self, PyObject *unused)
{
    (void)unused;
    return PyLong_FromLongLong(rewind_frames(((Core *)self)->state));
}

static PyObject *core_silence(PyObject *self, PyObject *on)
{
    int wanted = PyObject_IsTrue(on);
    if (wanted < 0)
        return NULL;
    put(&((Core *)self)->state->silenced, wanted);
    Py_RETURN_NONE;
}

static PyObject *core_stamp(PyObject *self, PyObject *unused)
{
    int64_t ns, captured, played;
    (void)unused;
    take_stamp(((Core *)self)->state, &ns, &captured, &played);
    return Py_BuildValue("(LLL)", (long long)ns, (long long)captured, (long long)played);
}

static PyObject *core_stats(PyObject *self, PyObject *unused)
{
    State *s = ((Core *)self)->state;
    (void)unused;
    return Py_BuildValue(
        "{sLsLsLsLsLsLsLsLsLsLsLsLsLsLsL}",
        "captured", (long long)get(&s->captured), "read", (long long)get(&s->in_taken),
        "in_dropped", (long long)get(&s->in_dropped), "in_full_events", (long long)get(&s->in_full_events),
        "played", (long long)get(&s->played), "written", (long long)get(&s->written),
        "late_frames", (long long)get(&s->late_frames), "dry_frames", (long long)get(&s->dry_frames),
        "dry_events", (long long)get(&s->dry_events), "out_full_frames", (long long)get(&s->out_full_frames),
        "callbacks", (long long)get(&s->callbacks), "max_callback_ns", (long long)get(&s->max_callback_ns),
        "max_gap_ns", (long long)get(&s->max_gap_ns), "nonfinite_in", (long long)get(&s->nonfinite_in),
        "nonfinite_out", (long long)get(&s->nonfinite_out));
}

static PyObject *core_callback(PyObject *self, void *unused)
{
    (void)self;
    (void)unused;
    return PyLong_FromUnsignedLongLong((unsigned long long)(uintptr_t)device_callback);
}

static PyObject *core_userdata(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromVoidPtr(((Core *)self)->state);
}

#define WITH_KEYWORDS(function) ((PyCFunction)(void (*)(void))(function))
#define SLOT(function) ((void *)(uintptr_t)(function)) /* ISO C has no cast from function to object pointer */

static PyMethodDef core_methods[] = {
    {"call", WITH_KEYWORDS(core_call), METH_VARARGS | METH_KEYWORDS, "Run the callback once through its pointer."},
    {"wait", WITH_KEYWORDS(core_wait), METH_VARARGS | METH_KEYWORDS, "Wait, without the lock, for input frames."},
    {"read", core_read, METH_O, "Copy input frames; (frames, position of the first)."},
    {"readable", core_readable, METH_NOARGS, "Input frames that can be read now."},
    {"wanted", core_wanted, METH_NOARGS, "Frames the reader waits for now; 0: it does not wait."},
    {"discard", core_discard, METH_O, "Skip input frames; how many went."},
    {"write", WITH_KEYWORDS(core_write), METH_VARARGS | METH_KEYWORDS, "Place frames at an output position."},
    {"rewind", core_rewind, METH_NOARGS, "Forget what was written but not played."},
    {"silence", core_silence, METH_O, "While on, play silence whatever was written."},
    {"stamp", core_stamp, METH_NOARGS, "(ns, captured, played) of the latest callback."},
    {"stats", core_stats, METH_NOARGS, "Counters by name."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef core_getset[] = {
    {"callback", core_callback, NULL, "Address of the C callback.", NULL},
    {"userdata", core_userdata, NULL, "Address of this core's state.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot core_slots[] = {
    {Py_tp_doc, "One device stream's callback state with its two lock-free rings."},
    {Py_tp_new, SLOT(core_new)},
    {Py_tp_dealloc, SLOT(core_dealloc)},
    {Py_tp_methods, core_methods},
    {Py_tp_getset, core_getset},
    {0, NULL},
};

static PyType_Spec core_spec = {
    .name = "myna.daemon._core.Core",
    .basicsize = sizeof(Core),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = core_slots,
};

static int fill_module(PyObject *module)
{
    PyObject *type = PyType_FromModuleAndSpec(module, &core_spec, NULL);
    if (!type)
        return -1;
    int failed = PyModule_AddObjectRef(module, "Core", type);
    Py_DECREF(type);
    return failed;
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, SLOT(fill_module)},
    {0, NULL},
};

static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_core",
    .m_doc = "The native audio core.",
    .m_size = 0,
    .m_slots = module_slots,
};

PyMODINIT_FUNC PyInit__core(void)
{
    return PyModuleDef_Init(&module_def);
}
#endif /* MYNA_CORE_ONLY */
