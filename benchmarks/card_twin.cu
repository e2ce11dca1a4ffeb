// FrozenLake 8x8 learned on a card by hand: what benchmarks/card.py measures the library's kernels beside.
//
// The same work: 256 blocks of 512 walkers, epsilon-greedy Q-learning with step sizes n^-0.7, the targets of a
// step added up for their entries as whole numbers in shared memory, and blocks merged after 128 steps by the
// order-free form. The lake is arithmetic here, and a table of outcomes there.
//
//     nvcc -O3 -arch=native -o card_twin card_twin.cu && ./card_twin SECONDS

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>

constexpr int kBlocks = 256, kThreads = 512, kInterval = 128, kSide = 8, kEntries = kSide * kSide * 4;
constexpr int kTimeLimit = 200;
constexpr uint64_t kGamma = 0x9e3779b97f4a7c15ull;
constexpr double kUnit = 1.0 / (1ull << 40);

__constant__ uint64_t kHoles;  // a bit for each cell

struct Walker {
    int cell, elapsed;
};

__device__ uint64_t mixed(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

__device__ uint32_t draw(uint64_t bits, uint32_t below) { return __umulhi(uint32_t(bits), below); }

__device__ int moved(int cell, int direction) {
    int row = cell / kSide, column = cell % kSide;
    switch (direction & 3) {
        case 0: column = max(column - 1, 0); break;
        case 1: row = min(row + 1, kSide - 1); break;
        case 2: column = min(column + 1, kSide - 1); break;
        default: row = max(row - 1, 0);
    }
    return row * kSide + column;
}

__device__ double power(double base, int exponent) {
    double result = 1.0;
    for (; exponent > 0; exponent >>= 1, base *= base)
        if (exponent & 1) result *= base;
    return result;
}

__global__ void play_round(const double* values, const long long* visits, Walker* walkers, double* weights,
                           double* shifts, int* counts, uint64_t key, uint64_t used, double epsilon) {
    __shared__ double q[kEntries], weight[kEntries], shift[kEntries];
    __shared__ unsigned long long sums[kEntries];
    __shared__ int hits[kEntries], fresh[kEntries];
    const int thread = threadIdx.x, number = blockIdx.x * kThreads + thread;
    for (int entry = thread; entry < kEntries; entry += kThreads) {
        q[entry] = values[entry];
        weight[entry] = 1.0;
        shift[entry] = 0.0;
        sums[entry] = 0;
        hits[entry] = fresh[entry] = 0;
    }
    Walker walker = walkers[number];
    __syncthreads();
    for (int i = 0; i < kInterval; ++i) {
        const uint64_t at = key + (used + uint64_t(i) * kBlocks * kThreads + number) * 2 * kGamma;
        const uint64_t random = mixed(at), outcome = mixed(at + kGamma);
        const int row = 4 * walker.cell;
        int best = 0, ties = 1;
        for (int action = 1; action < 4; ++action) {
            if (q[row + action] > q[row + best]) best = action, ties = 1;
            else ties += q[row + action] == q[row + best];
        }
        if (ties > 1) {
            const double top = q[row + best];
            int pick = draw(random, ties);
            for (int action = 0; action < 4; ++action)
                if (q[row + action] == top && pick-- == 0) best = action;
        }
        const bool explores = double(random >> 32) * 0x1p-32 < epsilon;
        const int action = explores ? draw(random, 4) : best;
        const int next = moved(walker.cell, action + 3 + draw(outcome, 3));
        const bool goal = next == kSide * kSide - 1, over = goal || (kHoles >> next & 1);
        double target = goal;
        if (!over)
            target = 0.99 * fmax(fmax(q[4 * next], q[4 * next + 1]), fmax(q[4 * next + 2], q[4 * next + 3]));
        atomicAdd(&sums[row + action], static_cast<unsigned long long>(target / kUnit + 0.5));
        atomicAdd(&hits[row + action], 1);
        walker.elapsed++;
        walker.cell = next;
        if (over || walker.elapsed >= kTimeLimit) walker = {0, 0};
        __syncthreads();
        for (int entry = thread; entry < kEntries; entry += kThreads) {
            const int k = hits[entry];
            if (k == 0) continue;
            fresh[entry] += k;
            const double n = fmax(double(visits[entry] + fresh[entry]) / kBlocks, 1.0);
            const double keep = power(1.0 - pow(n, -0.7), k), mean = sums[entry] * kUnit / k;
            q[entry] = keep * q[entry] + (1.0 - keep) * mean;
            weight[entry] *= keep;
            shift[entry] = keep * shift[entry] + (1.0 - keep) * mean;
            hits[entry] = 0;
            sums[entry] = 0;
        }
        __syncthreads();
    }
    walkers[number] = walker;
    for (int entry = thread; entry < kEntries; entry += kThreads) {
        const int at = blockIdx.x * kEntries + entry;
        weights[at] = weight[entry];
        shifts[at] = shift[entry];
        counts[at] = fresh[entry];
    }
}

__global__ void merge(double* values, long long* visits, const double* weights, const double* shifts,
                      const int* counts) {
    const int entry = threadIdx.x;
    double weight = 1.0, targets = 0.0;
    long long count = 0;
    for (int block = 0; block < kBlocks; ++block) {
        const int at = block * kEntries + entry;
        if (counts[at] == 0) continue;
        targets += counts[at] * (shifts[at] / (1.0 - weights[at]));
        weight *= weights[at];
        count += counts[at];
    }
    if (count == 0) return;
    values[entry] = weight * values[entry] + (1.0 - weight) * (targets / count);
    visits[entry] += count;
}

static void check(cudaError_t error) {
    if (error == cudaSuccess) return;
    std::fprintf(stderr, "%s\n", cudaGetErrorString(error));
    std::exit(1);
}

template <class T>
static T* zeros(size_t size) {
    T* memory;
    check(cudaMalloc(&memory, size * sizeof(T)));
    check(cudaMemset(memory, 0, size * sizeof(T)));
    return memory;
}

int main(int, char** arguments) {
    const double seconds = std::atof(arguments[1]);
    const int holes[] = {19, 29, 35, 41, 42, 46, 49, 52, 54, 59};
    uint64_t bits = 0;
    for (int cell : holes) bits |= 1ull << cell;
    check(cudaMemcpyToSymbol(kHoles, &bits, sizeof bits));
    double* values = zeros<double>(kEntries);
    long long* visits = zeros<long long>(kEntries);
    Walker* walkers = zeros<Walker>(kBlocks * kThreads);
    double *weights = zeros<double>(kBlocks * kEntries), *shifts = zeros<double>(kBlocks * kEntries);
    int* counts = zeros<int>(kBlocks * kEntries);
    uint64_t used = 0;
    double passed = 0.0;
    for (bool measures : {false, true}) {  // the first time everything is loaded
        used = 0;
        const auto begin = std::chrono::steady_clock::now();
        do {
            for (int round = 0; round < 16; ++round, used += uint64_t(kBlocks) * kThreads * kInterval) {
                play_round<<<kBlocks, kThreads>>>(values, visits, walkers, weights, shifts, counts, 7, used, 0.5);
                merge<<<1, kEntries>>>(values, visits, weights, shifts, counts);
            }
            check(cudaDeviceSynchronize());
            passed = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
        } while (measures && passed < seconds);
    }
    check(cudaGetLastError());
    std::printf("{\"steps_per_second\": %.6g}\n", used / passed);
}
