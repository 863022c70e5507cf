#include "echelon/models/family.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "echelon/base/error.h"
#include "echelon/models/weights_folder.h"
#include "tests/base/scratch_folder.h"
#include "tests/base/thrown.h"

namespace echelon {
namespace {

ModelOptions tiny(const std::string& family) {
  return {.family = family, .layers = 2, .width = 16, .heads = 2, .vocab = 32, .context = 8};
}

void write(const std::filesystem::path& folder, const ModelOptions& options) {
  Stack stack = family_of(options).build(options);
  stack.allocate(at::kCPU, at::kFloat, Gradients::no);
  stack.load(random_values(1));
  write_weights(folder, options, stack, at::kFloat, [](const Parameter& p) { return p.value; });
}

TEST(Family, EveryOneDescribesItsModelsWithoutMemory) {
  ASSERT_GE(families().size(), 2u);
  for (const Family* family : families()) {
    const ModelOptions options = tiny(family->name);
    EXPECT_EQ(&family_of(options), family);
    Stack stack = family->build(options);
    EXPECT_EQ(std::ssize(family->activations(options, {.tokens = 8})), stack.size())
        << family->name;
    apply(family->split(options), stack, 2, 1, /*sequence=*/true);
    EXPECT_NE(family->describe(options).find("2 layers"), std::string::npos) << family->name;
  }
}

TEST(Family, AnUnknownOneIsRefused) {
  EXPECT_EQ(thrown<InvalidArgument>([] { family_of(tiny("t5")); }),
            "model.family = t5; there are gpt2, llama, bert");
}

TEST(Family, OptionsOfAnotherAreRefused) {
  ModelOptions options = tiny("gpt2");
  options.llama.kv_heads = 1;
  EXPECT_EQ(thrown<InvalidArgument>([&] { check(options); }),
            "model.kv_heads = 1 is an option of model.family=llama: leave it out, or set that");
  options.family = "llama";
  check(options);
}

TEST(Family, IsDeterminedByAFolderOfWeights) {
  for (const Family* family : families()) {
    const ScratchFolder folder;
    write(folder.path(), tiny(family->name));
    ModelOptions options{.dropout = 0.1, .init = folder.path().string()};
    resolve_model(options, {"model.dropout", "model.init"});
    EXPECT_EQ(options.family, family->name);
    EXPECT_EQ(options.width, 16);
    EXPECT_EQ(options.dropout, 0.1);
  }
}

TEST(Family, ABertsFolderDeterminesDropoutUnlessItIsGiven) {
  for (const Family* family : families()) {
    const ScratchFolder folder;
    ModelOptions of = tiny(family->name);
    of.dropout = 0.1;
    write(folder.path(), of);
    ModelOptions options{.init = folder.path().string()};
    resolve_model(options, {"model.init"});
    EXPECT_EQ(options.dropout, options.family == "bert" ? 0.1 : 0.0) << family->name;
    options = {.init = folder.path().string()};
    resolve_model(options, {"model.dropout", "model.init"});
    EXPECT_EQ(options.dropout, 0) << family->name;
  }
}

TEST(Family, ABertPassesOnTheSharesOfDropoutThatItDoesNotApply) {
  const ScratchFolder folder;
  write(folder.path(), tiny("bert"));
  const auto config = folder / "config.json";
  const auto read = [&] { return nlohmann::json::parse(std::ifstream(config)); };
  auto changed = read();
  EXPECT_EQ(changed["attention_probs_dropout_prob"], 0.0);
  EXPECT_TRUE(changed["classifier_dropout"].is_null()) << "that of the hidden states";
  changed["attention_probs_dropout_prob"] = 0.2;
  changed["classifier_dropout"] = 0.3;
  std::ofstream(config) << changed;
  ModelOptions options = read_model_options(folder.path());
  options.dropout = 0.4;
  const auto written = nlohmann::json::parse(family_of(options).write_config(options));
  EXPECT_EQ(written["hidden_dropout_prob"], 0.4);
  EXPECT_EQ(written["attention_probs_dropout_prob"], 0.2);
  EXPECT_EQ(written["classifier_dropout"], 0.3);
  std::filesystem::remove(config);
  EXPECT_EQ(nlohmann::json::parse(
                family_of(options).write_config(options))["attention_probs_dropout_prob"],
            0.0)
      << "a folder that is gone is no reason to lose the weights";
}

TEST(Family, AGivenContextIsTakenWherePositionsHaveNoParameters) {
  for (const Family* family : families()) {
    const ScratchFolder folder;
    write(folder.path(), tiny(family->name));
    ModelOptions options{.context = 5, .init = folder.path().string()};
    const auto resolve = [&] { resolve_model(options, {"model.context", "model.init"}); };
    if (family->any_context) {
      resolve();
      EXPECT_EQ(options.context, 5) << family->name;
      const Stack stack = family->build(options);
      read_weights(folder.path(), options, stack);
    } else {
      EXPECT_EQ(thrown<InvalidArgument>(resolve), "model.context = 5, but the weights in " +
                                                      folder.path().string() +
                                                      " are of a model with 8; leave it out");
    }
  }
}

TEST(Family, AGivenOneThatIsNotTheFoldersIsRefused) {
  const ScratchFolder folder;
  write(folder.path(), tiny("llama"));
  ModelOptions options{.family = "gpt2", .init = folder.path().string()};
  EXPECT_EQ(thrown<InvalidArgument>([&] {
              resolve_model(options, {"model.init", "model.family"});
            }),
            "model.family = gpt2, but the weights in " + folder.path().string() +
                " are of a model with llama; leave it out");
  options = {.family = "llama", .init = folder.path().string()};
  options.llama.kv_heads = 1;
  EXPECT_EQ(thrown<InvalidArgument>([&] { resolve_model(options, {"model.kv_heads"}); }),
            "model.kv_heads = 1, but the weights in " + folder.path().string() +
                " are of a model with 2; leave it out");
}

}  // namespace
}  // namespace echelon
