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

constexpr int SPINS = 500;  // looks at the count of a meeting before sleeping, some 20 microseconds

// How many tasks of one phase are taken from one thread's part, or done, on a cache line of its own.
struct alignas(64) Count {
    std::atomic<int64_t> value;
};

// The threads of one step, as one of them sees it. They share out the tasks of a phase and go on once all are done.
//
// Each begins with its own part and then helps the others; nobody is waited for but who has a task in hand. So a thread
// that has lost its core for a while holds up one task and not its half of the phase, or, between two tasks, nothing: it
// finds the phases it has missed empty, and what it reads meanwhile it gives to nobody. Who waits sleeps after a moment:
// on a machine with other work to do, a thread that spins takes the core which the one it waits for needs. OpenMP's own
// barrier spins for milliseconds.
class Team {
public:
    // counts: size + 1 a phase, all zero before the first thread comes.
    explicit Team(Count* counts) : me(omp_get_thread_num()), size(omp_get_num_threads()), counts(counts) {}

    template <class Task>
    void share(int64_t tasks, Task task) {
        int64_t own = 0;
        for (int64_t i = 0; i < size; i++) {
            const int64_t owner = (me + i) % size, begin = tasks * owner / size, end = tasks * (owner + 1) / size;
            std::atomic<int64_t>& taken = counts[owner].value;
            for (int64_t at; (at = begin + taken.fetch_add(1, std::memory_order_relaxed)) < end; own++) task(at);
        }
        if (size > 1) meet(counts[size].value, own, tasks);
        counts += size + 1;
    }

    const int64_t me, size;

private:
    static void meet(std::atomic<int64_t>& done, int64_t own, int64_t tasks) {
        if (own && done.fetch_add(own, std::memory_order_acq_rel) + own == tasks) return done.notify_all();
        for (int i = 0; i < SPINS; i++) {
            if (done.load(std::memory_order_acquire) == tasks) return;
            _mm_pause();
        }
        for (int64_t seen; (seen = done.load(std::memory_order_acquire)) != tasks;) done.wait(seen, std::memory_order_acquire);
    }

    Count* counts;
};

}  // namespace
