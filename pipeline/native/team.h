// team: the threads of one parallel region.
//
// In:    counters the caller has set to zero
// Out:   tasks, each done once, and meetings
// Owns:  nothing
// Never: what a task computes
#pragma once

#include <immintrin.h>
#include <omp.h>

#include <atomic>
#include <cstdint>

namespace {

constexpr int SPINS = 500;  // looks at the clock of a meeting before sleeping, some 20 microseconds

// How many tasks of one phase are taken from one thread's part, on a cache line of its own.
struct alignas(64) Taken {
    std::atomic<int64_t> count;
};

// The threads of one step, as one of them sees it. They share out the tasks of a phase and meet at its end.
//
// Each begins with its own part and then helps the others, so that one which has lost its core for a while holds up one
// task and not its half of the phase. Who waits sleeps after a moment: on a machine with other work to do, a thread
// that spins takes the core which the one it waits for needs. OpenMP's own barrier spins for milliseconds.
class Team {
public:
    // All are zero before the first thread comes. meeting: 2; taken: one a thread and phase.
    Team(Taken* meeting, Taken* taken) : me(omp_get_thread_num()), size(omp_get_num_threads()), meeting(meeting), taken(taken) {}

    template <class Task>
    void share(int64_t tasks, Task task) {
        for (int64_t i = 0; i < size; i++) {
            const int64_t owner = (me + i) % size, begin = tasks * owner / size, end = tasks * (owner + 1) / size;
            for (int64_t at; (at = begin + taken[owner].count.fetch_add(1, std::memory_order_relaxed)) < end;) task(at);
        }
        taken += size;
        if (size > 1) meet();
    }

    const int64_t me, size;

private:
    void meet() {
        phase++;
        std::atomic<int64_t>&arrived = meeting[0].count, &ended = meeting[1].count;
        if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == phase * size) {
            ended.store(phase, std::memory_order_release);
            ended.notify_all();
            return;
        }
        for (int i = 0; i < SPINS; i++) {
            if (ended.load(std::memory_order_acquire) >= phase) return;
            _mm_pause();
        }
        for (int64_t seen; (seen = ended.load(std::memory_order_acquire)) < phase;) ended.wait(seen, std::memory_order_acquire);
    }

    Taken *meeting, *taken;
    int64_t phase = 0;
};

}  // namespace
