// The cells of `echelon verify` and their closed forms.
#include "echelon/verify/matrix.h"

#include <gtest/gtest.h>

#include <set>

#include "echelon/verify/forms.h"
#include "echelon/verify/mesh_forms.h"

namespace echelon {
namespace {

// Which pairs of values occur in some choice; values of all factors are numbered consecutively.
class Together {
 public:
  Together() {
    for (const auto& factor : matrix_factors()) {
      first_.push_back(count_);
      count_ += factor.values.size();
    }
    seen_.resize(count_ * count_);
  }
  void mark(const MatrixChoice& choice) {
    for (std::size_t f = 0; f < choice.size(); ++f)
      for (std::size_t g = f + 1; g < choice.size(); ++g)
        seen_[(first_[f] + std::size_t(choice[f])) * count_ + first_[g] + std::size_t(choice[g])] =
            true;
  }
  bool operator()(std::size_t f, int v, std::size_t g, int w) const {
    return seen_[(first_[f] + std::size_t(v)) * count_ + first_[g] + std::size_t(w)];
  }
  std::vector<std::string> missing_from(const Together& other) const {
    std::vector<std::string> all;
    const auto& factors = matrix_factors();
    for (std::size_t f = 0; f < factors.size(); ++f)
      for (std::size_t g = f + 1; g < factors.size(); ++g)
        for (int v = 0; v < std::ssize(factors[f].values); ++v)
          for (int w = 0; w < std::ssize(factors[g].values); ++w)
            if ((*this)(f, v, g, w) && !other(f, v, g, w))
              all.push_back(factors[f].name + "=" + factors[f].values[std::size_t(v)] + " with " +
                            factors[g].name + "=" + factors[g].values[std::size_t(w)]);
    return all;
  }

 private:
  std::vector<std::size_t> first_;
  std::size_t count_ = 0;
  std::vector<bool> seen_;
};

using matrix::precision;

// All choices that a job allows, one factor after another.
template <class Visit>
void each_allowed(MatrixChoice& choice, std::size_t factor, const Visit& visit) {
  if (factor == choice.size()) return visit(choice);
  for (int v = 0; v < std::ssize(matrix_factors()[factor].values); ++v) {
    choice[factor] = v;
    if (can_go_together(choice)) each_allowed(choice, factor + 1, visit);
  }
  choice[factor] = -1;
}

TEST(VerifyMatrix, HasEveryPairThatAJobAllows) {
  ASSERT_EQ(matrix_factors()[precision].name, "train.precision");
  Together allowed, allowed_in_fp64, chosen, chosen_in_fp64;
  std::int64_t count = 0;
  MatrixChoice choice(matrix_factors().size(), -1);
  each_allowed(choice, 0, [&](const MatrixChoice& one) {
    ++count;
    allowed.mark(one);
    if (one[precision] == 0) allowed_in_fp64.mark(one);
  });
  EXPECT_GT(count, 1'000'000) << "far too many to try";
  const auto cells = pairwise_choices();
  for (const auto& one : cells) {
    EXPECT_TRUE(can_go_together(one)) << name_of(one);
    chosen.mark(one);
    if (one[precision] == 0) chosen_in_fp64.mark(one);
  }
  EXPECT_EQ(allowed.missing_from(chosen), std::vector<std::string>());
  EXPECT_EQ(allowed_in_fp64.missing_from(chosen_in_fp64), std::vector<std::string>());
  EXPECT_EQ(chosen.missing_from(allowed), std::vector<std::string>());
  EXPECT_LT(cells.size(), 300u);
}

TEST(VerifyMatrix, HasEveryFactoringOfOneToEightRanks) {
  std::set<std::string> meshes;
  for (const auto& one : pairwise_choices()) {
    const JobOptions job = job_of(one, "");
    const auto& [p, d, t] = std::tie(job.parallel.pipeline, job.parallel.data, job.parallel.tensor);
    EXPECT_EQ(p * d * t, world_of(one));
    meshes.insert(matrix_factors()[0].values[std::size_t(one[0])]);
  }
  std::set<std::string> expected;
  for (int p = 1; p <= 8; ++p)
    for (int d = 1; p * d <= 8; ++d)
      for (int t = 1; p * d * t <= 8; ++t)
        expected.insert(std::to_string(p) + "x" + std::to_string(d) + "x" + std::to_string(t));
  EXPECT_EQ(meshes, expected);
}

TEST(VerifyMatrix, IsTheSameEveryTime) { EXPECT_EQ(pairwise_choices(), pairwise_choices()); }

TEST(VerifyMatrix, HasTensorGroupsWithRowsSplitAndWholeInItsQuickPart) {
  for (const bool sequence : {false, true}) {
    const auto cells = quick_choices();
    EXPECT_TRUE(std::any_of(cells.begin(), cells.end(),
                            [&](const auto& choice) {
                              const auto parallel = job_of(choice, "").parallel;
                              return parallel.tensor > 1 && parallel.sequence == sequence;
                            }))
        << "parallel.sequence=" << (sequence ? "true" : "false");
  }
}

TEST(VerifyMatrix, HasEveryValueInItsQuickPart) {
  const auto cells = quick_choices();
  EXPECT_LT(cells.size(), 12u);
  for (std::size_t f = 1; f < matrix_factors().size(); ++f)
    for (int v = 0; v < std::ssize(matrix_factors()[f].values); ++v)
      EXPECT_TRUE(std::any_of(cells.begin(), cells.end(), [&](const auto& c) { return c[f] == v; }))
          << matrix_factors()[f].name << "=" << matrix_factors()[f].values[std::size_t(v)];
  for (const int world : {2, 3, 4, 8})
    EXPECT_TRUE(std::any_of(cells.begin(), cells.end(), [&](const auto& c) {
      return world_of(c) == world;
    })) << world;
}

using Bytes = std::map<std::string, std::uint64_t>;

// A step of fp64 with few enough numbers to count by hand: width 4, 5 tokens in the vocabulary.
Strategy small(int pipeline, int data, int tensor, int blocks = 2) {
  Strategy one{.name = "small", .mesh = true};
  one.options.model = {.layers = blocks, .width = 4, .heads = 2, .vocab = 5, .context = 2};
  one.options.train.steps = 1;
  one.options.train.batch = 4;
  one.options.train.precision = Precision::fp64;
  one.options.parallel.pipeline = pipeline;
  one.options.parallel.data = data;
  one.options.parallel.tensor = tensor;
  one.options.parallel.sequence = false;
  one.options.pipeline.balance = BalanceBy::count;
  return one;
}

// One boundary: 4 samples of 2 tokens of 4 numbers, both ways. The table has 5 rows of 4.
TEST(MeshForms, APipelineSendsActivationsAndTheTiedTable) {
  Strategy one = small(2, 1, 1);
  one.options.train.micro_batches = 2;
  EXPECT_EQ(mesh_bytes(one), (Bytes{{"activations", 2 * 4 * 2 * 4 * 8},
                                    {"tied gradients", 2 * 5 * 4 * 8},
                                    {"norm", 2 * 8},
                                    {"loss", 2 * 8}}));
  one.options.model.tied = false;
  EXPECT_FALSE(mesh_bytes(one).contains("tied gradients"));
  one.options.pipeline.schedule = PipelineOrder::interleaved;
  one.options.pipeline.chunks = 2;
  EXPECT_EQ(mesh_bytes(one).at("activations"), 3 * 2 * 4 * 2 * 4 * 8);
}

// 8 rows of 4 numbers are 256 bytes: 4 sums per block and one each for embedding and head; with
// sequence parallelism 10 halves per block, 2 and 3.
TEST(MeshForms, ATensorGroupSendsItsSums) {
  Strategy one = small(1, 1, 2);
  EXPECT_EQ(mesh_bytes(one), (Bytes{{"tensor", 2 * (4 * 2 + 1 + 1) * 256},
                                    {"vocabulary", 2 * 3 * 8 * 8},
                                    {"norm", 2 * 8}}));
  one.options.model.recompute = Recompute::full;
  EXPECT_EQ(mesh_bytes(one).at("tensor"), 2 * (5 * 2 + 1 + 1) * 256);
  one.options.parallel.sequence = true;
  EXPECT_EQ(mesh_bytes(one).at("tensor"), (13 * 2 + 2 + 3) * 256);
  // Five norms of two vectors, and two positions, of 4 numbers.
  EXPECT_EQ(mesh_bytes(one).at("norms"), 2 * (5 * 2 + 2) * 4 * 8);
  one.options.model.recompute = Recompute::none;
  EXPECT_EQ(mesh_bytes(one).at("tensor"), (10 * 2 + 2 + 3) * 256);
  // With sequence parallelism, each tensor rank sends its half of the rows.
  one = small(2, 1, 2);
  EXPECT_EQ(mesh_bytes(one).at("activations"), 2 * 2 * 256);
  one.options.parallel.sequence = true;
  EXPECT_EQ(mesh_bytes(one).at("activations"), 2 * 256);
}

// Padded to 32 elements per parameter and 64 per group: a block has 512, the positions of the
// embedding 64, the head's norm 64, and both copies of the table, which are separate groups, 64
// too. The first rank of 1f1b runs F0 F1 B0 B1, the second F0 B0 F1 B1. A group that two
// consecutive slots need stays.
TEST(MeshForms, Zero3GathersALayerForEverySlotThatNeedsIt) {
  Strategy one = small(2, 2, 1);
  one.options.train.micro_batches = 2;
  one.options.parallel.zero = 3;
  one.options.zero.group = 0;
  one.options.zero.scatter = ScatterOption::step;
  const std::uint64_t table = 64, positions = 64, block = 512, norm = 64;
  EXPECT_EQ(part_bytes(one, 0), (table + positions + block) * 8);
  EXPECT_EQ(part_bytes(one, 1), (block + norm + table) * 8);
  EXPECT_EQ(mesh_bytes(one).at("parameters"),
            (4 * (table + positions) + 3 * block + 3 * block + 2 * (norm + table)) * 8);
  EXPECT_EQ(mesh_bytes(one).at("gradients"), (positions + 2 * block + norm + 2 * table) * 8);
  one.options.zero.scatter = ScatterOption::micro_batch;  // the tied table waits for its sum anyway
  EXPECT_EQ(mesh_bytes(one).at("gradients"), (2 * (positions + 2 * block + norm) + 2 * table) * 8);
  // The second rank always has a weight part pending.
  one.options.pipeline.schedule = PipelineOrder::zero_bubble;
  EXPECT_EQ(mesh_bytes(one).at("gradients"),
            (2 * (positions + block) + block + norm + 2 * table) * 8);
}

// Two independent forms agree where both apply.
TEST(MeshForms, AgreeWithThoseOfRanksThatHaveTheWholeModel) {
  for (const int ranks : {2, 3})
    for (int stage = 0; stage <= 3; ++stage)
      for (const int pieces : {1, 3})
        for (const bool tied : {true, false}) {
          Strategy one = small(1, ranks, 1);
          one.algorithm = Algorithm::shared;
          one.options.model.tied = tied;
          one.options.train.steps = 5;
          one.options.train.micro_batches = pieces;
          one.options.parallel.zero = stage;
          one.options.zero.scatter = ScatterOption::micro_batch;
          const std::uint64_t to = stage > 0 ? 32u * std::uint64_t(ranks) : 32u;
          const auto padded = [&](std::uint64_t n) { return (n + to - 1) / to * to * 8; };
          const std::vector groups = {padded(64), padded(480), padded(480), padded(tied ? 64 : 96)};
          const Bytes seen = mesh_bytes(one);
          EXPECT_EQ(seen.at("gradients") + (stage > 0 ? seen.at("parameters") : 0),
                    replica_bytes(one, groups, ranks, 1))
              << ranks << " ranks, stage " << stage << ", " << pieces << " micro-batches, "
              << (tied ? "tied" : "untied");
        }
}

TEST(MeshForms, KnowTheBubbleOfEverySchedule) {
  EXPECT_EQ(to_string(bubble_form(PipelineOrder::gpipe, {4, 8})), "3/8");
  EXPECT_EQ(to_string(bubble_form(PipelineOrder::one_f_one_b, {4, 8})), "3/8");
  EXPECT_EQ(to_string(bubble_form(PipelineOrder::interleaved, {4, 8, 2})), "3/16");
  EXPECT_EQ(to_string(bubble_form(PipelineOrder::zero_bubble, {4, 8})), "1/8");
  EXPECT_EQ(to_string(bubble_form(PipelineOrder::zero_bubble, {4, 1})), "2/1");
  for (const PipelineOrder name : all_values<PipelineOrder>)
    for (int p = 2; p <= 8; ++p)
      for (const int m : {1, p, 2 * p}) {
        const int v = name == PipelineOrder::interleaved ? 2 : 1;
        if (v > 1 && m < p) continue;
        const PipelineShape shape{p, m, v};
        EXPECT_EQ(to_string(bubble_of(make_schedule(name, shape), shape)),
                  to_string(Ratio(bubble_form(name, shape))))
            << name << " of " << p << " ranks and " << m << " micro-batches";
      }
}

TEST(MeshForms, TellAnotherOrderByItsBubble) {
  const PipelineShape shape{4, 8};
  EXPECT_FALSE(bubble_of(one_f_one_b(shape), shape) ==
               bubble_form(PipelineOrder::zero_bubble, shape));
  auto late = one_f_one_b(shape);
  std::swap(late[1][0], late[1][1]);  // swaps its micro-batches
  EXPECT_FALSE(bubble_of(late, shape) == bubble_form(PipelineOrder::one_f_one_b, shape));
}

}  // namespace
}  // namespace echelon
