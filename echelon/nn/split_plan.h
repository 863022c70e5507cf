// Which parameters of a model ranks split between them, by name, applied to a Stack from outside:
// its layers do not know. After "Megatron-LM" (Shoeybi et al., 2019; sequence parallelism:
// Korthikanti et al., 2022).
//
//   Stack stack = family.build(options);
//   apply(family.split(options), stack, mesh.tensor, /*sequence=*/true);
//   stack.allocate(…);                                  // this rank's parts alone
//
// A layer of one's own that is made of Linear, TokenTable and VocabularyLoss is split the same way:
//
//   SplitPlan plan;
//   plan.column("*.gate").column("*.up").row("*.down");
//
// Column splits give each rank its part of the columns, and whatever follows works on that part
// until a row split takes it: every column split needs a row split after it, in its layer and in
// the order of declaration, and the other way round. What lies between must work column by column
// (or head by head). Parameters that the plan does not name stay whole on every rank.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "echelon/nn/split.h"

namespace echelon {

class Communicator;
class Stack;

class SplitPlan {
 public:
  // Names are those of pieces, "transformer.h.0.mlp.c_fc": their ".weight" and ".bias" are meant.
  // A * stands for anything.
  // Of columns that are several blocks side by side, a rank has its part of each.
  SplitPlan& column(std::string name, int blocks = 1) {
    return add({Split::Kind::column, std::move(name), 0, 0, blocks});
  }
  SplitPlan& row(std::string name) { return add({Split::Kind::row, std::move(name)}); }
  // Columns that are queries, keys and values side by side, each of so many heads; or so many heads
  // of queries, and fewer of keys and values.
  SplitPlan& heads(std::string name, std::int64_t heads) {
    return this->heads(std::move(name), heads, heads);
  }
  SplitPlan& heads(std::string name, std::int64_t heads, std::int64_t kv_heads) {
    return add({Split::Kind::heads, std::move(name), heads, kv_heads});
  }
  // Rows of a table, padded where they do not divide.
  SplitPlan& vocabulary(std::string name) {
    return add({Split::Kind::vocabulary, std::move(name)});
  }

  struct Rule {
    Split::Kind kind;
    std::string name;
    std::int64_t heads = 0, kv_heads = 0;
    int blocks = 1;
  };
  const std::vector<Rule>& rules() const { return rules_; }

 private:
  SplitPlan& add(Rule rule) {
    rules_.push_back(std::move(rule));
    return *this;
  }
  std::vector<Rule> rules_;
};

// Splits a stack that is not laid out yet over the ranks; null or one rank: leaves it as it is.
// With `sequence`, rows of activations are split too, where every layer of the stack takes that
// (Layer::takes_rows): stack.tensor_group()->rows_are_split() says so. Throws InvalidArgument, and
// changes nothing, where a rule names no parameter, or one that its piece cannot split so; where
// sizes do not divide, naming some that do; and where parts of columns would go where nothing
// expects them.
void apply(const SplitPlan& plan, Stack& stack, std::shared_ptr<Communicator> ranks,
           bool sequence = false);
// As rank `index` of so many, without ranks: to lay out, not to run.
void apply(const SplitPlan& plan, Stack& stack, int parts, int index, bool sequence = false);

}  // namespace echelon
