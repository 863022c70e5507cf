#include "echelon/job/options.h"

#include <string>
#include <variant>

#include <gtest/gtest.h>

#include "echelon/base/error.h"
#include "tests/base/thrown.h"

namespace echelon {
namespace {

// Every field at a value that is not its default and is allowed.
void change(const Fields& fields) {
  for (const auto& field : fields.all()) {
    if (auto* const* flag = std::get_if<bool*>(&field.value)) **flag = !**flag;
    if (auto* const* whole = std::get_if<std::int64_t*>(&field.value)) **whole += 3;
    if (auto* const* real = std::get_if<double*>(&field.value)) **real = **real / 3 + 1e-7;
    if (auto* const* text = std::get_if<std::string*>(&field.value)) {
      **text =
          field.allowed.choices.empty() ? **text + " \"quoted\\\" ü" : field.allowed.choices.back();
    }
    if (std::holds_alternative<EnumOption>(field.value))
      set_option(fields, field.key + "=" + field.allowed.choices.back());
  }
}

TEST(JobOptions, ComeBackFromTheirTomlToTheLastBit) {
  for (const auto comments : {Comments::no, Comments::yes}) {
    JobOptions written, read;
    change(fields_of(written));
    const std::string toml = to_toml(fields_of(written), comments);
    const auto given = read_toml(fields_of(read), toml, "a test");
    const Fields ours = fields_of(written), theirs = fields_of(read);
    ASSERT_EQ(given.size(), ours.all().size());
    for (std::size_t i = 0; i < ours.all().size(); ++i) {
      const auto& field = ours.all()[i];
      EXPECT_EQ(text_of(field), text_of(theirs.all()[i])) << field.key << " of\n" << toml;
    }
    EXPECT_EQ(to_toml(theirs, comments), toml);
  }
}

TEST(JobOptions, TakeTheirOwnDefaults) {
  JobOptions written, read;
  EXPECT_NO_THROW(
      read_toml(fields_of(read), to_toml(fields_of(written), Comments::yes), "defaults"));
}

TEST(JobOptions, HaveTheNamesThatScriptsRelyOn) {
  JobOptions options;
  for (const auto* assignment :
       {"model.layers=1",     "model.width=8",          "model.heads=2",
        "model.vocab=300",    "model.context=16",       "model.tied=false",
        "model.dropout=0.1",  "model.recompute=full",   "model.init=folder",
        "data.source=random", "train.steps=7",          "train.batch=4",
        "train.seed=9",       "train.device=cuda",      "train.precision=bf16",
        "train.threads=2",    "train.validate_every=0", "train.save_every=5",
        "train.graph=off",    "optim.name=sgd",         "optim.rate=0.1",
        "optim.warmup=3",     "optim.decay=0",          "optim.clip=0"}) {
    EXPECT_NO_THROW(set_option(fields_of(options), assignment)) << assignment;
  }
  EXPECT_EQ(options.model.width, 8);
  EXPECT_EQ(options.train.precision, Precision::bf16);
  EXPECT_EQ(options.optim.rate, 0.1);
}

TEST(JobOptions, RefuseWhatIsOutOfBounds) {
  JobOptions options;
  for (const auto* assignment :
       {"model.layers=0", "model.vocab=1", "model.dropout=1", "model.recompute=some",
        "data.validation=0.6", "train.batch=0", "train.precision=fp8", "optim.rate=-1",
        "optim.beta1=1.5", "optim.name=lion", "train.steps=many"}) {
    const auto sentence =
        thrown<InvalidArgument>([&] { set_option(fields_of(options), assignment); });
    const std::string key(assignment, std::string(assignment).find('='));
    EXPECT_NE(sentence.find(key), std::string::npos) << assignment << ": " << sentence;
  }
}

TEST(JobOptions, NameTheNearestKey) {
  JobOptions options;
  const auto sentence =
      thrown<InvalidArgument>([&] { set_option(fields_of(options), "optim.rat=1"); });
  EXPECT_NE(sentence.find("optim.rate"), std::string::npos) << sentence;
}

}  // namespace
}  // namespace echelon
