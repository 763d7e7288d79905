/* Three threads on one core, as hard as they can: run by sanitize_core.py under the sanitizers.
 *
 * The device thread calls the callback, the reader checks that every input frame is the one of its position, the writer
 * writes generation after generation and rewinds between them. What the callback plays at full gain must be the
 * sound of its position and of no generation older than the last rewind allows: no old sound, ever.
 */

#define _POSIX_C_SOURCE 200809L
#define MYNA_CORE_ONLY
#include "../daemon/audio_core.c"

#include <pthread.h>
#include <stdio.h>

#define CAPACITY 1024
#define GENERATIONS 4096

static State state;
static Word stop, generation_begins[GENERATIONS + 1];
static int64_t device_errors, reader_errors, checked_out, checked_in, rewinds, placed;
static long callbacks;

static float heard_at(int64_t position) { return (float)(position * 7919 % 65521 + 1) / 65536.0f; }

/* Generation and position in one exactly representable value below 1. */
static float sound_at(int64_t generation, int64_t position)
{
    return (float)((generation % 256) * 256 + position % 255 + 1) / 65536.0f;
}

static uint32_t next(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

static void *device_thread(void *unused)
{
    float in[64], out[64];
    uint32_t seed = 1;
    int64_t position = 0, oldest = 0;
    (void)unused;
    for (long i = 0; i < callbacks; i++) {
        int frames = (int)(next(&seed) % 64) + 1;
        for (int k = 0; k < frames; k++)
            in[k] = heard_at(position + k);
        /* What had been rewound before this callback began must not sound in it. */
        while (oldest + 1 <= GENERATIONS && get(&generation_begins[oldest + 1]) && get(&generation_begins[oldest + 1]) - 1 <= position)
            oldest++;
        int whole = state.rising == FADE_FRAMES && state.falling == 0;
        device_callback(in, out, (unsigned long)frames, NULL, 0, &state);
        whole = whole && state.rising == FADE_FRAMES && state.falling == 0;
        for (int k = 0; k < frames; k++) {
            if (!(fabsf(out[k]) <= 1.0f))
                device_errors++;
            if (!whole)
                continue;
            long code = lrintf(out[k] * 65536.0f) - 1;
            checked_out++;
            if (code % 256 != (position + k) % 255 || (code / 256 - oldest % 256 + 256) % 256 >= 128)
                device_errors++;
        }
        position += frames;
        if (next(&seed) % 4 == 0)
            sleep_ns(1000);
    }
    put(&stop, 1);
    return NULL;
}

static void *reader_thread(void *unused)
{
    float into[300];
    uint32_t seed = 2;
    int64_t last = 0;
    (void)unused;
    while (!get(&stop)) {
        int64_t position, ns, captured, played;
        wait_readable(&state, next(&seed) % 200 + 1, 1000000);
        int64_t count = read_frames(&state, into, next(&seed) % 300, &position);
        if (count && position < last)
            reader_errors++;
        for (int64_t k = 0; k < count; k++)
            if (into[k] != heard_at(position + k))
                reader_errors++;
        checked_in += count;
        last = count ? position + count : last;
        take_stamp(&state, &ns, &captured, &played);
        if (captured != played)
            reader_errors++;
        if (next(&seed) % 400 == 0)
            sleep_ns(2000000); /* let the ring run full */
    }
    return NULL;
}

static void *writer_thread(void *unused)
{
    float sound[200];
    uint32_t seed = 3;
    int64_t generation = 0;
    (void)unused;
    while (!get(&stop)) {
        int64_t position = get(&state.written), now = get(&state.played);
        if (position < now || next(&seed) % 50 == 0)
            position = now + next(&seed) % 100;
        int64_t frames = next(&seed) % 200;
        for (int64_t k = 0; k < frames; k++)
            sound[k] = sound_at(generation, position + k);
        placed += write_frames(&state, position, sound, frames);
        if (next(&seed) % 40 == 0 && generation < GENERATIONS) {
            rewind_frames(&state);
            rewinds++;
            generation++;
            put(&generation_begins[generation], get(&state.claimed) + 1);
        }
        put(&state.silenced, next(&seed) % 500 == 0);
        if (get(&state.written) - get(&state.played) > 400)
            sleep_ns(20000);
    }
    return NULL;
}

int main(int count, char **arguments)
{
    static float in_ring[CAPACITY], out_ring[CAPACITY];
    pthread_t threads[3];
    callbacks = count > 1 ? atol(arguments[1]) : 20000;
    state.rate_hz = 48000.0;
    state.paced = 1;
    state.in_channels = state.out_channels = state.in_mapped = state.out_mapped = 1;
    state.capacity = CAPACITY;
    state.mask = CAPACITY - 1;
    state.in_ring = in_ring;
    state.out_ring = out_ring;
    put(&state.first_due, NEVER);
    pthread_create(&threads[0], NULL, device_thread, NULL);
    pthread_create(&threads[1], NULL, reader_thread, NULL);
    pthread_create(&threads[2], NULL, writer_thread, NULL);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    printf("callbacks=%ld out_checked=%lld in_checked=%lld rewinds=%lld placed=%lld dry_events=%lld full_events=%lld "
           "device_errors=%lld reader_errors=%lld\n",
           callbacks, (long long)checked_out, (long long)checked_in, (long long)rewinds, (long long)placed,
           (long long)get(&state.dry_events), (long long)get(&state.in_full_events), (long long)device_errors,
           (long long)reader_errors);
    int64_t captured = get(&state.captured), taken = get(&state.in_taken), dropped = get(&state.in_dropped);
    int balanced = captured == taken + dropped + readable(&state);
    return !(device_errors == 0 && reader_errors == 0 && balanced && checked_out && checked_in && rewinds);
}
