// Pipeline schedules as data: in which order each rank runs the forwards and backwards of its
// stages. A schedule is a pure function of a shape; `validate` says beforehand whether it can run,
// simulate.h how long it takes, draw.h how it looks.
//
//   name         source                                     chunks   micro-batches
//   gpipe        Huang et al. 2019, arXiv:1811.06965        1        any
//   1f1b         Narayanan et al. 2021, arXiv:2104.04473    1        any
//   interleaved  Narayanan et al. 2021, arXiv:2104.04473    any      multiples of the ranks
//   zero-bubble  Qi et al. 2023, arXiv:2401.10241 (ZB-H1)   1        any
//
// Under each of them a stage adds the micro-batches' gradients in the order of their numbers, so
// the sums are the same to the bit. In formulas p is the number of ranks, m of micro-batches, v of
// chunks, and i a rank.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "echelon/parallel/pipeline/options.h"

namespace echelon {

// The model is cut into stages. Chunk c of rank r is stage c * ranks + r: with several chunks a
// micro-batch comes round to every rank as often.
struct PipelineShape {
  int ranks = 1;
  int micro_batches = 1;
  int chunks = 1;  // stages of one rank

  int stages() const { return ranks * chunks; }
  int stage(int rank, int chunk) const { return chunk * ranks + rank; }
  int rank_of(int stage) const { return stage % ranks; }
  int chunk_of(int stage) const { return stage / ranks; }
};

// What a rank computes at a time.
struct Slot {
  enum class Kind {
    forward,   // keeps what its backward needs, and gives its output to the next stage
    backward,  // gradients of input and parameters at once
    input,     // the gradient of what came in alone: the stage before waits for nothing else
    weight,    // the parameters' gradients, which can wait
  };
  Kind kind;
  int chunk = 0;
  int micro_batch = 0;

  bool operator==(const Slot&) const = default;
};

using Order = std::vector<Slot>;              // of one rank
using PipelineSchedule = std::vector<Order>;  // by rank

std::string_view to_string(Slot::Kind kind);  // "forward"
std::string to_string(const Slot& slot);      // "forward(chunk 0, micro-batch 3)"

// All forwards, then all backwards.
PipelineSchedule gpipe(const PipelineShape& shape);
// Rank i runs p-i-1 forwards, then forward and backward in turn: no more than p-i activations are
// alive, however many micro-batches there are.
PipelineSchedule one_f_one_b(const PipelineShape& shape);
// The same in turns of p micro-batches through each chunk; rank i begins with 2(p-i-1) + (v-1)p
// forwards. With one chunk it takes the time of 1f1b and more memory, but hides longer transfers.
PipelineSchedule interleaved(const PipelineShape& shape);
// 1f1b with the backward in two: rank i runs a weight part i micro-batches late, which fills the
// wait for the last backwards. Every rank holds what the first holds under 1f1b.
PipelineSchedule zero_bubble(const PipelineShape& shape);

// One of the above. All of them throw InvalidArgument where a shape has no such
// schedule, and name the nearest that has.
PipelineSchedule make_schedule(PipelineOrder order, const PipelineShape& shape);

// Throws InvalidArgument naming rank, index and slot where a schedule cannot run: something twice,
// missing or out of the shape, a backward before its forward, an input part without its weight part
// or the other way round, a weight part before its input part; ranks that wait for each other for
// ever; and, where a bound is given (by rank; 0: none), more activations alive than that. A forward
// waits for that of the stage before, a backward or input part for that of the stage after; to send
// never blocks.
void validate(const PipelineSchedule& schedule, const PipelineShape& shape,
              const std::vector<int>& most_activations = {});

// The most (chunk, micro-batch) pairs alive at once on a rank: from the forward to the backward, or
// to the weight part where there are two.
int peak_activations(const PipelineSchedule& schedule, int rank);

// The bubble by formula: the time in which a rank idles, over the time in which it works. All
// stages cost the same, transfers nothing.
//
//   gpipe, 1f1b  (p-1) / m         any cost of forward and backward
//   interleaved  (p-1) / (v m)     the same
//   zero-bubble  (p-1) / (3 m)     forward F, input part I and weight part W cost the same; m >= p
//                (2p-1-m) / (3 m)  m < p: the first gradient is back at the first rank after 2p-1
//                                  parts, of which that rank had m to run
//
// Qi et al. have (p-1)(F+I-W) / (m (F+I+W)) for parts of unequal cost. That holds for m >= p as
// long as W is no longer than F nor I.
double ideal_bubble(PipelineOrder order, const PipelineShape& shape);
// The same in words, "(p-1)/m = 3/8 = 37.5 %", and as the share of the step in which a rank idles,
// "(p-1)/(m+p-1) = 3/11 = 27.3 %".
std::string ideal_bubble_text(PipelineOrder order, const PipelineShape& shape);
std::string ideal_idle_text(PipelineOrder order, const PipelineShape& shape);

// peak_activations by formula, for any number of micro-batches:
//
//   gpipe        m
//   1f1b         min(m, p-i)
//   interleaved  min(m v, 2(p-i-1) + (v-1)p + 1)    in chunks, each 1/v of a rank's layers; the
//                                                   second is the smaller from m = 2p on
//   zero-bubble  min(m, p)                          p-i as in 1f1b, and i whose weight part waits
int closed_form_activations(PipelineOrder order, const PipelineShape& shape, int rank);

}  // namespace echelon
