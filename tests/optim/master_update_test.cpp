// Whole updates over flat units, against torch::optim (LARS and LAMB: the papers' formulas) and
// torch's clip_grad_norm_ on separate tensors.
#include "echelon/optim/master_update.h"

#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "echelon/base/error.h"
#include "echelon/base/random.h"
#include "echelon/optim/flat_norm.h"
#include "echelon/optim/optimizer.h"
#include "tests/base/thrown.h"
#include "tests/nn/close.h"
#include "tests/nn/holder.h"

namespace echelon {
namespace {

// Two layers of odd sizes with both decay groups and a frozen parameter. `tune` sets rules of its
// own for some parameters.
Stack odd_stack(at::ScalarType type, const std::function<void(Parameter&)>& tune = {}) {
  Stack stack = stack_of({{{"a.weight", {13, 7}, Init::normal(1)},
                           {"a.bias", {7}, Init::normal(1), /*decay=*/false},
                           {"a.fixed", {5}, Init::normal(1), true, /*trainable=*/false}},
                          {{"b.weight", {3, 41}, Init::normal(1)},
                           {"b.gain", {}, Init::ones(), false},
                           {"b.bias", {33}, Init::zeros(), false},
                           {"b.table", {17, 3}, Init::normal(1)}}});
  if (tune)
    for (const auto& p : stack.parameters()) tune(*stack.find(p.name));
  stack.allocate(at::kCPU, type, Gradients::yes);
  return stack;
}

// Rates and decays of every kind, in groups that cut through both layers.
void tune(Parameter& p) {
  if (p.name == "a.weight" || p.name == "b.bias") p.update.rate = 0.1;
  if (p.name == "a.bias") p.update.own_decay = 0.7;
  if (p.name == "b.table") p.update = {.decay = true, .rate = 3, .own_decay = 0};
}

at::Tensor noise(const Parameter& p, int step) {
  at::Tensor out = at::empty(p.shape, at::kDouble);
  fill_normal(derive_key(static_cast<std::uint64_t>(step), p.name), 0,
              std::span(out.data_ptr<double>(), static_cast<std::size_t>(out.numel())), 0, 1);
  return out;
}

void set_gradients(Stack& stack, int step, double size) {
  for (const auto& p : stack.parameters()) {
    if (p.trainable) at::Tensor(p.grad).copy_(noise(p, step).mul(size));
  }
}

double rate_of(int step) { return 0.01 / (1 + step); }  // not powers of two: rounding shows

void apply(MasterUpdate& update, int step, double loss = 1) {
  update.rate().fill_(rate_of(step));
  update.apply(at::full({}, loss, at::kDouble));
}

// A parameter group as torch has them: `rate` is a factor of the step's.
struct TorchGroup {
  double rate, decay;
  std::vector<at::Tensor> tensors;
};

using torch::optim::OptimizerParamGroup;
std::unique_ptr<torch::optim::Optimizer> torch_optimizer(const OptimOptions& o,
                                                         const std::vector<TorchGroup>& groups) {
  const auto adam = torch::optim::AdamWOptions(0).betas({o.beta1, o.beta2}).eps(o.epsilon);
  const auto sgd = torch::optim::SGDOptions(0).momentum(o.momentum).nesterov(o.nesterov);
  std::vector<OptimizerParamGroup> all;
  for (const auto& group : groups) {
    all.emplace_back(group.tensors);
    if (o.name == OptimizerKind::adamw)
      all.back().set_options(std::make_unique<torch::optim::AdamWOptions>(
          torch::optim::AdamWOptions(adam).weight_decay(group.decay)));
    else
      all.back().set_options(std::make_unique<torch::optim::SGDOptions>(
          torch::optim::SGDOptions(sgd).weight_decay(group.decay)));
  }
  if (o.name == OptimizerKind::adamw) return std::make_unique<torch::optim::AdamW>(all, adam);
  return std::make_unique<torch::optim::SGD>(all, sgd);
}

// The papers' formulas on whole tensors. State is stored by the tensor's address.
struct Formula {
  OptimOptions options;
  std::vector<TorchGroup> groups;
  std::map<void*, std::vector<at::Tensor>> state;
  int steps = 0;

  void step(double rate) {
    const at::NoGradGuard no_grad;
    ++steps;
    for (const auto& group : groups)
      for (at::Tensor w : group.tensors) {
        auto& mine = state[w.unsafeGetTensorImpl()];
        while (mine.size() < 2) mine.push_back(at::zeros_like(w));
        options.name == OptimizerKind::lars ? lars(w, mine, rate * group.rate, group.decay)
                                            : lamb(w, mine, rate * group.rate, group.decay);
      }
  }
  void lars(at::Tensor w, std::vector<at::Tensor>& mine, double rate, double decay_rate) const {
    const at::Tensor g = w.grad();
    const double a = w.norm().item<double>(), b = g.norm().item<double>();
    const double local = a > 0 && b > 0 ? options.trust * a / (b + decay_rate * a) : 1;
    mine[0] = options.momentum * mine[0] + rate * local * (g + decay_rate * w);
    w.sub_(mine[0]);
  }
  void lamb(at::Tensor w, std::vector<at::Tensor>& mine, double rate, double decay_rate) const {
    const at::Tensor g = w.grad();
    mine[0] = options.beta1 * mine[0] + (1 - options.beta1) * g;
    mine[1] = options.beta2 * mine[1] + (1 - options.beta2) * g * g;
    const at::Tensor r =
        mine[0] / (1 - std::pow(options.beta1, steps)) /
        ((mine[1] / (1 - std::pow(options.beta2, steps))).sqrt() + options.epsilon);
    const at::Tensor u = r + decay_rate * w;
    const double a = w.norm().item<double>(), b = u.norm().item<double>();
    w.sub_(rate * (a > 0 && b > 0 ? a / b : 1) * u);
  }
};

std::function<void(double rate)> reference(const OptimOptions& o, std::vector<TorchGroup> groups) {
  if (o.name == OptimizerKind::lars || o.name == OptimizerKind::lamb)
    return [formula = std::make_shared<Formula>(Formula{o, groups, {}})](double rate) {
      formula->step(rate);
    };
  return [optimizer = std::shared_ptr(torch_optimizer(o, groups)), groups](double rate) {
    for (std::size_t i = 0; i < groups.size(); ++i)
      optimizer->param_groups()[i].options().set_lr(rate * groups[i].rate);
    optimizer->step();
  };
}

std::vector<std::pair<const char*, OptimOptions>> rules() {
  OptimOptions adamw;
  adamw.decay = 0.3;
  adamw.beta2 = 0.97;
  OptimOptions sgd;
  sgd.name = OptimizerKind::sgd;
  sgd.decay = 0.3;
  sgd.momentum = 0;
  OptimOptions momentum = sgd;
  momentum.momentum = 0.8;
  OptimOptions nesterov = momentum;
  nesterov.nesterov = true;
  OptimOptions lars = momentum;
  lars.name = OptimizerKind::lars;
  lars.trust = 0.02;
  OptimOptions lamb = adamw;
  lamb.name = OptimizerKind::lamb;
  return {{"adamw", adamw},       {"sgd", sgd},   {"momentum", momentum},
          {"nesterov", nesterov}, {"lars", lars}, {"lamb", lamb}};
}

// Runs twenty steps of both. The norm of the gradients exceeds the clip bound in some steps and
// stays below it in others.
void expect_like_reference(const char* rule, OptimOptions options, double clip, at::ScalarType type,
                           double tolerance, const std::function<void(Parameter&)>& tune = {}) {
  const auto wide = type == at::kDouble ? at::kDouble : at::kFloat;
  options.clip = clip;
  Stack stack = odd_stack(type, tune);
  MasterUpdate update(stack, options);
  update.load(random_values(1));

  std::map<std::string, at::Tensor> twins;
  std::vector<at::Tensor> all;
  std::map<std::pair<double, double>, std::vector<at::Tensor>> by_rule;
  const at::Tensor master = update.state().front().flat;
  const auto master_of = [&](const std::string& name) {
    for (const auto& unit : stack.units()) {
      for (const auto& segment : unit.segments) {
        if (segment.name == name)
          return master.narrow(0, unit.begin + segment.offset, segment.numel).view(segment.shape);
      }
    }
    return at::Tensor();
  };
  for (const auto& p : stack.parameters()) {
    if (!p.trainable) continue;
    at::Tensor twin = at::empty(p.shape, wide);
    random_values(1)(p, twin);
    EXPECT_TRUE(at::equal(master_of(p.name), twin))
        << "masters begin in full precision: " << p.name;
    all.push_back(twins[p.name] = twin.set_requires_grad(true));
    const double usual = p.update.decay ? options.decay : 0;
    by_rule[{p.update.rate, p.update.own_decay.value_or(usual)}].push_back(twin);
  }
  const at::Tensor fixed = stack.find("a.fixed")->value.clone();
  std::vector<TorchGroup> groups;
  for (const auto& [rule_of, tensors] : by_rule)
    groups.push_back({rule_of.first, rule_of.second, tensors});
  EXPECT_EQ(groups.size(), tune ? 6U : 2U);
  const auto step_reference = reference(options, groups);

  for (int step = 0; step < 20; ++step) {
    set_gradients(stack, step, step % 3 == 2 ? 0.01 : 0.5);
    for (auto& [name, twin] : twins) twin.mutable_grad() = stack.find(name)->grad.to(wide).clone();
    const double norm = torch::nn::utils::clip_grad_norm_(
        all, clip > 0 ? clip : std::numeric_limits<double>::infinity());
    step_reference(rate_of(step));

    apply(update, step);
    EXPECT_NEAR(update.norm().item<double>(), norm, tolerance * norm) << rule << ", step " << step;
    for (const auto& [name, twin] : twins) {
      ASSERT_TRUE(close(master_of(name), twin, tolerance))
          << rule << ", clip " << clip << ", step " << step << ", " << name;
      ASSERT_TRUE(at::equal(stack.find(name)->value, master_of(name).to(type)))
          << name << " is its master in the compute type";
    }
  }
  EXPECT_EQ(update.updates(), 20);
  EXPECT_EQ(update.halted().item<double>(), 0);
  EXPECT_TRUE(at::equal(stack.find("a.fixed")->value, fixed))
      << "what does not train does not move";
}

TEST(MasterUpdate, MatchesTheReferenceInDoublePrecision) {
  for (const auto& [rule, options] : rules()) {
    for (const double clip : {0.0, 1.0})
      expect_like_reference(rule, options, clip, at::kDouble, 1e-12);
  }
}

TEST(MasterUpdate, MatchesTheReferenceInSinglePrecision) {
  for (const auto& [rule, options] : rules()) {
    for (const double clip : {0.0, 1.0})
      expect_like_reference(rule, options, clip, at::kFloat, 2e-6);
  }
}

TEST(MasterUpdate, KeepsSinglePrecisionMastersOfNarrowParameters) {
  for (const auto& [rule, options] : rules()) {
    for (const double clip : {0.0, 1.0})
      expect_like_reference(rule, options, clip, at::kBFloat16, 2e-6);
  }
}

TEST(MasterUpdate, GivesEachGroupItsRateAndDecay) {
  for (const auto& [rule, options] : rules())
    for (const double clip : {0.0, 1.0}) {
      expect_like_reference(rule, options, clip, at::kDouble, 1e-12, tune);
      expect_like_reference(rule, options, clip, at::kFloat, 3e-6, tune);
      expect_like_reference(rule, options, clip, at::kBFloat16, 3e-6, tune);
    }
}

// A group with the rate and the decay of the others is no group of its own.
TEST(MasterUpdate, HasTheSameBitsForGroupsThatSayWhatHoldsAnyway) {
  for (const auto& [rule, options] : rules()) {
    const auto trained = [&](const std::function<void(Parameter&)>& tune) {
      Stack stack = odd_stack(at::kFloat, tune);
      MasterUpdate update(stack, options);
      update.load(random_values(1));
      for (int step = 0; step < 5; ++step) {
        set_gradients(stack, step, 1);
        apply(update, step);
      }
      std::map<std::string, at::Tensor> values;
      for (const auto& p : stack.parameters()) values[p.name] = p.value.clone();
      return values;
    };
    const auto plain = trained({}), told = trained([&](Parameter&p) {
                                      if (p.name.starts_with("b."))
                                        p.update.own_decay = p.update.decay_of(options.decay);
                                    });
    for (const auto& [name, value] : plain)
      EXPECT_TRUE(at::equal(told.at(name), value)) << rule << ", " << name;
  }
}

TEST(MasterUpdate, KeepsThePaddingZero) {
  for (const auto type : {at::kDouble, at::kFloat, at::kBFloat16}) {
    for (const auto& [rule, options] : rules()) {
      Stack stack = odd_stack(type);
      MasterUpdate update(stack, options);
      update.load(random_values(1));
      for (int step = 0; step < 3; ++step) {
        set_gradients(stack, step, 1);
        apply(update, step);
      }
      auto buffers = update.state();
      buffers.push_back({"values", stack.values()});
      buffers.push_back({"gradients", stack.grads()});
      for (const auto& [name, flat] : buffers) {
        at::Tensor padding = flat.clone();
        for (const auto& unit : stack.units()) {
          if (!unit.trainable) continue;
          for (const auto& s : unit.segments)
            padding.narrow(0, unit.begin + s.offset, s.numel).zero_();
        }
        EXPECT_EQ(padding.ne(0).sum().item<double>(), 0) << name << " of " << rule;
      }
    }
  }
}

TEST(MasterUpdate, UpdatesNarrowParametersSliceBySlice) {
  // A slice is 16 Mi elements: two slices of one decay group and one of the other.
  constexpr std::int64_t slice = std::int64_t{16} << 20;
  Stack stack =
      stack_of({{{"w", {slice + 100}, Init::zeros()}, {"b", {100}, Init::zeros(), false}}});
  stack.allocate(at::kCPU, at::kBFloat16, Gradients::yes);
  OptimOptions options;
  options.name = OptimizerKind::sgd;
  options.momentum = 0;
  options.clip = 0;
  MasterUpdate update(stack, options);
  at::Tensor grads = stack.grads();
  grads.narrow(0, 0, slice).fill_(1);
  grads.narrow(0, slice, 100).fill_(2);
  stack.find("b")->grad.fill_(3);
  update.rate().fill_(0.5);
  update.apply(at::zeros({}, at::kDouble));
  const auto expect = [&](std::int64_t begin, std::int64_t size, double value) {
    EXPECT_TRUE(close(stack.values().narrow(0, begin, size), at::full({size}, value), 0)) << begin;
  };
  expect(0, 10, -0.5);
  expect(slice - 10, 10, -0.5);
  expect(slice, 100, -1);
  expect(slice + 128, 100, -1.5);
}

struct Snapshot {
  explicit Snapshot(const Stack& stack, const MasterUpdate& update) : updates(update.updates()) {
    tensors.emplace_back("values", stack.values().clone());
    for (const auto& [name, flat] : update.state()) tensors.emplace_back(name, flat.clone());
  }
  double updates;
  std::vector<std::pair<std::string, at::Tensor>> tensors;
};

void expect_same(const Snapshot& now, const Snapshot& before, const std::string& when) {
  EXPECT_EQ(now.updates, before.updates) << when;
  for (std::size_t i = 0; i < now.tensors.size(); ++i) {
    EXPECT_TRUE(at::equal(now.tensors[i].second, before.tensors[i].second))
        << now.tensors[i].first << ", " << when;
  }
}

TEST(MasterUpdate, ChangesNothingFromTheFirstNonFiniteNumberOn) {
  const double nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
  for (const auto type : {at::kDouble, at::kFloat, at::kBFloat16}) {
    for (const auto& [rule, base] : rules()) {
      for (const double clip : {0.0, 1.0}) {
        struct Poison {
          const char* name;
          double loss, gradient;
        };
        for (const auto& poison : {Poison{"loss NaN", nan, 1},
                                   {"loss infinite", infinity, 1},
                                   {"gradient NaN", 1, nan},
                                   {"gradient infinite", 1, infinity},
                                   {"gradient minus infinite", 1, -infinity}}) {
          OptimOptions options = base;
          options.clip = clip;
          Stack stack = odd_stack(type);
          MasterUpdate update(stack, options);
          update.load(random_values(1));
          for (int step = 0; step < 2; ++step) {
            set_gradients(stack, step, 0.1);
            apply(update, step);
          }
          const Snapshot before(stack, update);
          const std::string when =
              std::string(rule) + ", " + poison.name + ", clip " + std::to_string(clip);
          set_gradients(stack, 2, 0.1);
          stack.find("b.weight")->grad.view({-1})[5] = poison.gradient;
          apply(update, 2, poison.loss);
          EXPECT_EQ(update.halted().item<double>(), 1) << when;
          expect_same(Snapshot(stack, update), before, when);
          for (int step = 3; step < 5; ++step) {
            set_gradients(stack, step, 0.1);
            apply(update, step);
          }
          EXPECT_EQ(update.halted().item<double>(), 1) << when;
          expect_same(Snapshot(stack, update), before, when + ", later steps");
        }
      }
    }
  }
}

// A power of two as scale changes no bits when it is multiplied in and divided out.
TEST(MasterUpdate, DividesByTheLossScaleAndClipsTheTrueGradient) {
  for (const auto& [rule, base] : rules()) {
    for (const double clip : {0.0, 1.0}) {
      OptimOptions options = base;
      options.clip = clip;
      Stack with = odd_stack(at::kHalf), without = odd_stack(at::kHalf);
      MasterUpdate scaled(with, options, LossScale::Setup{.first = 512, .growth = 5});
      MasterUpdate plain(without, options);
      scaled.load(random_values(1));
      plain.load(random_values(1));
      for (int step = 0; step < 12; ++step) {
        const double scale = scaled.loss_scale()->state().scale;
        EXPECT_EQ(scale, step < 5 ? 512 : step < 10 ? 1024 : 2048);
        set_gradients(without, step, step % 3 == 2 ? 0.01 : 0.5);
        at::Tensor(with.grads()).copy_(without.grads()).mul_(scale);
        apply(scaled, step);
        apply(plain, step);
        ASSERT_EQ(scaled.norm().item<double>(), plain.norm().item<double>()) << rule << step;
        const auto ours = scaled.state(), theirs = plain.state();
        for (std::size_t i = 0; i < ours.size(); ++i)
          ASSERT_TRUE(at::equal(ours[i].flat, theirs[i].flat))
              << ours[i].name << " of " << rule << ", clip " << clip << ", step " << step;
      }
    }
  }
}

TEST(MasterUpdate, SkipsOnlyTheStepsThatOverflow) {
  for (const auto& [rule, base] : rules()) {
    for (const double clip : {0.0, 1.0}) {
      OptimOptions options = base;
      options.clip = clip;
      Stack stack = odd_stack(at::kHalf);
      MasterUpdate update(stack, options, LossScale::Setup{.first = 256, .growth = 100});
      update.load(random_values(1));
      double scale = 256;
      for (int step = 0; step < 7; ++step) {
        // The first step, two in a row, and one with a NaN.
        const bool overflow = step == 0 || step == 2 || step == 3 || step == 5;
        const Snapshot before(stack, update);
        const std::string when = std::string(rule) + ", step " + std::to_string(step);
        set_gradients(stack, step, 0.1 * scale);
        if (overflow)
          stack.find("b.weight")->grad.view({-1})[5] =
              step == 5 ? std::nan("") : std::numeric_limits<double>::infinity();
        apply(update, step);
        EXPECT_EQ(update.skipped().item<double>(), overflow) << when;
        EXPECT_EQ(update.halted().item<double>(), 0) << when;
        EXPECT_EQ(std::isfinite(update.norm().item<double>()), !overflow) << when;
        if (overflow) {
          expect_same(Snapshot(stack, update), before, when);
          scale /= 2;
        } else {
          EXPECT_FALSE(at::equal(update.state().front().flat, before.tensors[1].second)) << when;
          EXPECT_TRUE(update.state().front().flat.isfinite().all().item<bool>()) << when;
        }
        EXPECT_EQ(update.loss_scale()->state().scale, scale) << when;
      }
      EXPECT_EQ(update.updates(), 3);
    }
  }
}

TEST(MasterUpdate, HaltsIfTheLossIsNotFiniteOrTheScaleIsExhausted) {
  for (const bool of_loss : {true, false}) {
    Stack stack = odd_stack(at::kHalf);
    MasterUpdate update(stack, rules()[0].second, LossScale::Setup{.first = 1, .growth = 100});
    update.load(random_values(1));
    set_gradients(stack, 0, 0.1);
    apply(update, 0);
    const Snapshot before(stack, update);
    for (int step = 1; step < 4; ++step) {
      set_gradients(stack, step, 0.1);
      if (step == 1 && !of_loss)
        stack.find("a.weight")->grad.view({-1})[3] = std::numeric_limits<double>::infinity();
      apply(update, step, step == 1 && of_loss ? std::nan("") : 1.0);
      EXPECT_EQ(update.halted().item<double>(), 1) << step;
      EXPECT_EQ(update.skipped().item<double>(), 1) << step;
      expect_same(Snapshot(stack, update), before, "step " + std::to_string(step));
      EXPECT_EQ(update.loss_scale()->state().scale, 1) << "later steps must not move it";
      EXPECT_EQ(update.loss_scale()->state().good_steps, 1);
    }
  }
}

// An owner's arithmetic does not depend on the other owners: with the same gradients and the same
// norm, slices get the same values as within the whole.
TEST(SliceUpdate, GivesSliceOwnersTheSameValuesAsASingleOwner) {
  for (const auto type : {at::kBFloat16, at::kHalf, at::kFloat})
    for (const auto& [rule, options] : rules()) {
      if (grain_of(options) == Grain::parameter) continue;  // sums norms in a different order
      for (const int owners : {2, 3, 4}) {
        Stack stack =
            stack_of({{{"a", {70, 9}, Init::normal(1)}, {"b", {9}, Init::ones(), false}},
                      {{"c", {31, 5}, Init::normal(1)}, {"d", {40}, Init::ones(), false}}});
        stack.find("c")->update.rate = 7;
        stack.find("d")->update.own_decay = 0.2;
        Stack::Allocation allocation;
        allocation.shards = owners;
        allocation.smallest = 1;
        stack.allocate(at::kCPU, type, Gradients::yes, allocation);
        const auto n = stack.grads().numel();
        std::optional<LossScale::Setup> scaling;
        if (type == at::kHalf) scaling = {1024, 2};
        at::Tensor all = at::zeros({n}, at::kFloat);
        for (const auto& p : stack.parameters())
          all.narrow(0, p.begin, p.numel()).copy_(noise(p, 77).view({-1}));
        const auto owner_of = [&](const std::vector<std::pair<std::int64_t, std::int64_t>>& parts) {
          std::vector<SliceUpdate::Part> all_parts;
          for (const auto& [begin, end] : parts)
            all_parts.push_back({all.narrow(0, begin, end - begin).clone(),
                                 ranges_within(stack.units(), begin, end, type)});
          return std::make_unique<SliceUpdate>(std::move(all_parts), at::kCPU, type, options, 0,
                                               std::function<void(at::Tensor)>(), scaling);
        };
        const auto whole = owner_of({{0, n}});
        std::vector<std::unique_ptr<SliceUpdate>> slices;
        std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>> owned;
        for (int r = 0; r < owners; ++r) {
          owned.emplace_back();
          for (const auto& group : stack.groups()) {
            const auto size = group.numel / owners, begin = group.begin + r * size;
            owned.back().emplace_back(begin, begin + size);
          }
          slices.push_back(owner_of(owned.back()));
        }
        const at::Tensor loss = at::zeros({}, at::kDouble);
        for (int step = 0; step < 6; ++step) {
          set_gradients(stack, step, scaling ? 100 : 0.5);
          const at::Tensor grads = stack.grads();
          const at::Tensor norm = whole->without_scale(flat_norm(grads));
          for (int r = 0; r < owners; ++r) {
            std::vector<at::Tensor> mine;
            for (const auto& [begin, end] : owned[std::size_t(r)])
              mine.push_back(grads.narrow(0, begin, end - begin).clone());
            slices[std::size_t(r)]->rate().fill_(rate_of(step));
            slices[std::size_t(r)]->apply(mine, norm, loss);
          }
          whole->rate().fill_(rate_of(step));
          whole->apply({grads.clone()}, norm, loss);
          const auto expected = whole->parted_state();
          for (int r = 0; r < owners; ++r) {
            const auto seen = slices[std::size_t(r)]->parted_state();
            for (std::size_t kind = 0; kind < seen.size(); ++kind)
              for (std::size_t g = 0; g < owned[std::size_t(r)].size(); ++g) {
                const auto [begin, end] = owned[std::size_t(r)][g];
                ASSERT_TRUE(at::equal(seen[kind].parts[g],
                                      expected[kind].parts[0].narrow(0, begin, end - begin)))
                    << seen[kind].name << " of owner " << r << " of " << owners << ", " << rule
                    << ", step " << step;
              }
          }
        }
      }
    }
}

TEST(MasterUpdate, ContinuesFromItsStateBitForBit) {
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    for (const auto& [rule, options] : rules()) {
      Stack first = odd_stack(type), second = odd_stack(type);
      MasterUpdate one(first, options), other(second, options);
      one.load(random_values(1));
      other.load(random_values(2));
      for (int step = 0; step < 6; ++step) {
        if (step == 3) {
          const auto from = one.state(), to = other.state();
          ASSERT_EQ(from.size(), to.size());
          for (std::size_t i = 0; i < from.size(); ++i) at::Tensor(to[i].flat).copy_(from[i].flat);
          other.restart(one.updates());
          other.publish();
        }
        for (auto* stack : {&first, &second}) set_gradients(*stack, step, 0.1);
        apply(one, step);
        if (step >= 3) apply(other, step);
      }
      expect_same(Snapshot(second, other), Snapshot(first, one), rule);
    }
  }
}

TEST(MasterUpdate, NamesItsStates) {
  Stack stack = odd_stack(at::kFloat);
  const auto names = [&](const OptimOptions& options) {
    std::string text;
    for (const auto& state : MasterUpdate(stack, options).state()) text += state.name + " ";
    return text;
  };
  EXPECT_EQ(names(rules()[0].second), "master exp_avg exp_avg_sq ");
  EXPECT_EQ(names(rules()[1].second), "master ");
  EXPECT_EQ(names(rules()[2].second), "master momentum ");
}

TEST(MakeOptimizer, RefusesNesterovWithoutMomentum) {
  OptimOptions options;
  options.name = OptimizerKind::sgd;
  options.nesterov = true;
  options.momentum = 0;
  EXPECT_EQ(thrown<InvalidArgument>([&] { make_optimizer(options); }),
            "optim.nesterov needs momentum, but optim.momentum is 0; give it a value such as 0.9");
}

// A program's own optimiser: SGD with heavy-ball momentum, by plain operators.
class PlainMomentum : public Optimizer {
 public:
  explicit PlainMomentum(std::vector<std::string> names) : names_(std::move(names)) {}
  std::vector<std::string> state_names() const override { return names_; }
  void update(const std::vector<Slice>& slices, const StepScalars& scalars) const override {
    for (const auto& slice : slices) {
      const at::Tensor grad = usable_gradient(slice, scalars).add_(slice.value, slice.decay);
      at::Tensor velocity = slice.state.at(0);
      velocity.mul_(0.8).add_(grad);
      at::Tensor(slice.value).sub_(velocity * rate_of(scalars, slice.rate));
    }
  }

 private:
  std::vector<std::string> names_;
};

TEST(CustomOptimizer, UpdatesLikeTheOneThatItReimplements) {
  OptimOptions shipped;
  shipped.name = OptimizerKind::sgd;
  shipped.momentum = 0.8;
  shipped.decay = 0.3;
  OptimOptions own = shipped;
  own.name = OptimizerKind::adamw;  // has no effect
  own.custom = std::make_shared<PlainMomentum>(std::vector<std::string>{"velocity"});
  const auto trained = [](const OptimOptions& options) {
    auto stack = std::make_unique<Stack>(odd_stack(at::kDouble, tune));
    MasterUpdate update(*stack, options);
    update.load(random_values(1));
    for (int step = 0; step < 10; ++step) {
      set_gradients(*stack, step, 1);
      apply(update, step);
    }
    EXPECT_EQ(update.kinds().size(), 2U);
    return stack;
  };
  const auto one = trained(shipped), other = trained(own);
  for (const auto& p : one->parameters())
    EXPECT_TRUE(close(other->find(p.name)->value, p.value, 1e-12)) << p.name;
}

TEST(CustomOptimizer, CannotNameStatesAsOthersAreNamed) {
  for (const std::vector<std::string>& names :
       {std::vector<std::string>{"master"}, {""}, {"a/b"}, {"m", "m"}, {"grad"}}) {
    OptimOptions options;
    options.custom = std::make_shared<PlainMomentum>(names);
    EXPECT_NE(thrown<InvalidArgument>([&] { make_optimizer(options); }).find("cannot name a state"),
              std::string::npos)
        << names.front();
  }
}

}  // namespace
}  // namespace echelon
