// Pipeline schedules as data: the order in which each rank runs the forwards and backwards of its
// stages. A schedule is a pure function of a shape. `validate` says in advance whether it can run,
// simulate.h how long it takes, and draw.h what it looks like.
//
//   name         source                                     chunks   micro-batches
//   gpipe        Huang et al. 2019, arXiv:1811.06965        1        any
//   1f1b         Narayanan et al. 2021, arXiv:2104.04473    1        any
//   interleaved  Narayanan et al. 2021, arXiv:2104.04473    any      multiples of the ranks
//   zero-bubble  Qi et al. 2023, arXiv:2401.10241 (ZB-H1)   1        any
//
// In all of them a stage adds the gradients of micro-batches in the order of their numbers, so the
// sums are bitwise equal. In formulas, p is the number of ranks, m of micro-batches and v of
// chunks; i is a rank.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "echelon/parallel/pipeline/options.h"

namespace echelon {

// The model is cut into stages. Chunk c of rank r is stage c * ranks + r: with several chunks, a
// micro-batch visits every rank once per chunk.
struct PipelineShape {
  int ranks = 1;
  int micro_batches = 1;
  int chunks = 1;  // stages per rank

  int stages() const { return ranks * chunks; }
  int stage(int rank, int chunk) const { return chunk * ranks + rank; }
  int rank_of(int stage) const { return stage % ranks; }
  int chunk_of(int stage) const { return stage / ranks; }
};

// One unit of a rank's computation.
struct Slot {
  enum class Kind {
    forward,   // keeps what its backward needs and sends its output to the next stage
    backward,  // gradients of input and parameters together
    input,     // the gradient of the input only; the previous stage waits for nothing else
    weight,    // the gradients of the parameters, which can wait
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
// Rank i runs p-i-1 forwards, then alternates forward and backward. At most p-i activations are
// alive, however many micro-batches there are.
PipelineSchedule one_f_one_b(const PipelineShape& shape);
// The same, p micro-batches at a time through each chunk. Rank i begins with 2(p-i-1) + (v-1)p
// forwards. With one chunk it takes as long as 1f1b and more memory, but hides longer transfers.
PipelineSchedule interleaved(const PipelineShape& shape);
// 1f1b with the backward in two parts. Rank i runs each weight part i micro-batches late, which
// fills the wait for the last backwards. Every rank holds as many activations as rank 0 holds in
// 1f1b.
PipelineSchedule zero_bubble(const PipelineShape& shape);

// Any of the above. All of them throw InvalidArgument if no such schedule exists for the shape, and
// name the nearest shape that has one.
PipelineSchedule make_schedule(PipelineOrder order, const PipelineShape& shape);

// Throws InvalidArgument naming rank, index and slot if the schedule cannot run: a slot is
// duplicate, missing or outside the shape; a backward comes before its forward; an input part has
// no weight part or the reverse; a weight part comes before its input part; ranks deadlock; or more
// activations are alive than the bound for that rank, if one is given (0: none). A forward waits
// for the forward of the previous stage, a backward or input part for that of the next stage. Sends
// never block.
void validate(const PipelineSchedule& schedule, const PipelineShape& shape,
              const std::vector<int>& most_activations = {});

// The most (chunk, micro-batch) pairs alive at once on a rank. A pair is alive from its forward to
// its backward, or to its weight part if the backward is split.
int peak_activations(const PipelineSchedule& schedule, int rank);

// The bubble by formula: the idle time of a rank over its busy time, if all stages cost the same
// and transfers cost nothing.
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
// The same as text: "(p-1)/m = 3/8 = 37.5 %", and as the fraction of the step in which a rank is
// idle: "(p-1)/(m+p-1) = 3/11 = 27.3 %".
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
