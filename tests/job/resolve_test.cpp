#include "echelon/job/resolve.h"

#include <gtest/gtest.h>

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "echelon/base/error.h"
#include "echelon/data/corpus/corpus_writer.h"
#include "echelon/data/tokenizer/tokenizer.h"
#include "echelon/job/data.h"
#include "echelon/models/family.h"
#include "echelon/models/weights_folder.h"
#include "tests/base/scratch_folder.h"
#include "tests/base/thrown.h"

namespace echelon {
namespace {

// A folder with a tokeniser of a few words, and files of text beside it.
class Place {
 public:
  Place() {
    std::string words;
    for (const char* word : {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "plot", "is",
                             "warm", "dull", "and", "then"})
      words += std::string(word) + "\n";
    write("vocab.txt", words);
  }
  std::string path(const std::string& name = "") const {
    return name.empty() ? folder_.path().string() : (folder_ / name).string();
  }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name)) << text;
    return path(name);
  }
  std::string labelled(std::int64_t count = 20) const {
    std::string text = "sentence\tlabel\n";
    for (std::int64_t i = 0; i < count; ++i)
      text += i % 3 == 0 ? "the plot is warm\tgood\n" : "the plot is dull and then dull\tbad\n";
    return write("train.tsv", text);
  }
  // A model from nothing with this tokeniser.
  JobOptions options(const std::string& source) const {
    JobOptions options;
    options.model.family = "bert";
    options.model.layers = 1;
    options.model.width = 16;
    options.model.heads = 2;
    options.model.context = 16;
    options.data.source = source;
    options.data.tokenizer = path();
    options.train.threads = 2;
    return options;
  }
  // A folder with weights beside the tokeniser.
  void write_model(const ModelOptions& model) const {
    Stack stack = family_of(model).build(model);
    stack.allocate(at::kCPU, at::kFloat, Gradients::no);
    stack.load(random_values(1));
    write_weights(path(), model, stack, at::kFloat, [](const Parameter& p) { return p.value; });
  }

 private:
  ScratchFolder folder_;
};

TEST(Resolve, TakesVocabularyTaskAndLabelsFromTheData) {
  const Place place;
  JobOptions options = place.options(place.labelled());
  resolve_options(options, {});
  EXPECT_EQ(options.model.vocab, 12);
  EXPECT_EQ(task_of(options.model), ModelTask::classify);
  EXPECT_EQ(options.model.task.labels, 2);
  EXPECT_EQ(options.model.task.label_names, (std::vector<std::string>{"bad", "good"}));
  const JobOptions before = options;
  resolve_options(options, {});
  EXPECT_EQ(options.model.task.label_names, before.model.task.label_names) << "once is enough";
}

TEST(Resolve, KeepsWhatWasGiven) {
  const Place place;
  JobOptions options = place.options(place.labelled());
  options.model.vocab = 20;
  options.model.task.name = ModelTask::mlm;
  resolve_options(options, {"model.vocab", "task.name"});
  EXPECT_EQ(options.model.vocab, 20);
  EXPECT_EQ(options.model.task.labels, 0);
  options.model.vocab = 11;
  EXPECT_EQ(thrown<InvalidArgument>([&] { resolve_options(options, {"model.vocab"}); }),
            "the tokeniser " + place.path() +
                " has 12 tokens, and the model's embedding has 11 (model.vocab): set "
                "model.vocab=12");
}

TEST(Resolve, RefusesANewHeadThatLoraWouldFreeze) {
  const Place place;
  JobOptions options = place.options(place.labelled());
  resolve_options(options, {});
  place.write_model(options.model);
  JobOptions job;
  job.model.init = place.path();
  job.model.task.name = ModelTask::mlm;
  job.data.source = options.data.source;
  resolve_options(job, {"model.init", "task.name"});
  EXPECT_EQ(missing_heads(place.path(), job.model, family_of(job.model).build(job.model)),
            std::vector<std::string>{"head for masked words"});
  job.model.lora.rank = 2;
  EXPECT_EQ(thrown<InvalidArgument>([&] {
              resolve_options(job, {"model.init", "task.name", "model.lora.rank"});
            }),
            place.path() +
                " has no head for masked words, and with model.lora.rank a new one would stay "
                "random, since LoRA freezes it: start from a folder that has one, or set "
                "model.lora.rank=0");
}

TEST(Resolve, FindsTheTokeniserBesideWeightsAndNamesLabelsThatHaveNone) {
  const Place place;
  JobOptions options = place.options(place.labelled());
  resolve_options(options, {});
  options.model.task.label_names.clear();  // the folder calls them LABEL_0 and LABEL_1
  place.write_model(options.model);
  JobOptions job;
  job.model.init = place.path();
  job.data.source = options.data.source;
  resolve_options(job, {"model.init", "data.source"});
  EXPECT_EQ(job.data.tokenizer, place.path());
  EXPECT_EQ(job.model.width, 16);
  EXPECT_EQ(job.model.task.label_names, (std::vector<std::string>{"bad", "good"}));
  // The head may have learnt another order.
  const std::string meaning = "the head in " + place.path() +
                              " has labels without names: 0 is bad, 1 is good (task.label_names)";
  EXPECT_NE(open_data(job).description.find(meaning), std::string::npos)
      << open_data(job).description;
  options.model.task.label_names = {"bad", "good"};
  EXPECT_EQ(open_data(options).description.find("is good"), std::string::npos) << "a new head";
  job.data.tokenizer = "bytes";
  EXPECT_EQ(thrown<InvalidArgument>([&] { resolve_options(job, {}); }),
            "data.tokenizer = bytes, but the weights in " + place.path() +
                " were trained with the tokeniser beside them: leave data.tokenizer out");
}

TEST(Resolve, LeavesBytesAsTheyAre) {
  JobOptions options;
  resolve_options(options, {});
  EXPECT_EQ(options.data.tokenizer, "");
  EXPECT_TRUE(tokens_are_bytes(options.data));
  EXPECT_EQ(options.model.vocab, 256);
}

TEST(OpenData, HoldsOutAShareOfTheRecordsThatIsAlwaysTheSame) {
  const Place place;
  JobOptions options = place.options(place.labelled());
  options.data.validation = 0.2;
  resolve_options(options, {});
  const JobData data = open_data(options), again = open_data(options);
  EXPECT_EQ(data.training->size(), 16);
  EXPECT_EQ(data.validation->size(), 4);
  EXPECT_EQ(data.fingerprint.digest, again.fingerprint.digest);
  EXPECT_NE(data.description.find("16 texts to train on, 4 texts to validate"), std::string::npos)
      << data.description;
  options.data.validation = 0.3;
  EXPECT_NE(open_data(options).fingerprint.digest, data.fingerprint.digest);
  options.train.validate_every = 0;
  EXPECT_EQ(open_data(options).training->size(), 20);
}

TEST(OpenData, GivesEachTaskItsTargets) {
  const Place place;
  JobOptions options = place.options(place.labelled());
  options.train.validate_every = 0;
  resolve_options(options, {});
  const std::vector<std::int64_t> first = {0, 1};
  const Batch labelled = open_data(options).training->get(first);
  EXPECT_EQ(labelled.description(),
            "input Long [2, 9], target Long [2], mask Long [2, 9], token_types Long [2, 9]");
  EXPECT_EQ(labelled.target[0].item<std::int64_t>(), 1) << "good";
  options.model.task = {.name = ModelTask::mlm};
  const Batch masked = open_data(options).training->get(first);
  EXPECT_EQ(masked.target.sizes(), masked.input.sizes());
}

TEST(OpenData, CutsTextsToTheLengthAndSaysHowMany) {
  const Place place;
  JobOptions options = place.options(place.labelled());
  options.data.length = 6;
  options.train.validate_every = 0;
  resolve_options(options, {});
  const JobData data = open_data(options);
  EXPECT_EQ(data.training->get(std::vector<std::int64_t>{0, 1}).input.size(1), 6);
  EXPECT_NE(data.description.find("20 texts (13 cut to 6 tokens)"), std::string::npos)
      << data.description;
}

TEST(OpenData, MixesSourcesByWeight) {
  const Place place;
  JobOptions options = place.options("stdlib");
  options.model.task.name = ModelTask::mlm;
  options.train.validate_every = 0;
  options.data.mix = {place.labelled() + "=3",
                      place.write("lines.txt", "the plot\n\nis warm and then dull\n") + "=1"};
  resolve_options(options, {});
  const JobData data = open_data(options);
  EXPECT_EQ(data.training->size(), 22);
  ASSERT_EQ(data.training->parts().size(), 2U);
  EXPECT_EQ(data.training->parts()[0].weight, 3);
  EXPECT_NE(data.fingerprint.digest, "");
  for (const char* wrong : {"a.txt", "a.txt=0", "a.txt=x", "=1"}) {
    options.data.mix = {wrong};
    EXPECT_NE(thrown<InvalidArgument>([&] { open_data(options); }).find(wrong), std::string::npos);
  }
}

// As without a mixture, records with labels are there to be classified.
TEST(Resolve, TakesTaskAndLabelsOfAMixtureFromItsSources) {
  const Place place;
  JobOptions options = place.options("stdlib");
  options.train.validate_every = 0;
  const std::string one = place.labelled(),
                    same =
                        place.write("same.tsv", "sentence\tlabel\nthe plot\tgood\nis dull\tbad\n"),
                    others = place.write("others.tsv", "sentence\tlabel\nis\tfine\nis dull\tbad\n"),
                    text = place.write("plain.tsv", "sentence\nthe plot\nis dull\n");
  const auto refusal = [&](const std::string& second) {
    JobOptions mixed = options;
    mixed.data.mix = {one + "=1", second + "=1"};
    return thrown<InvalidArgument>([&] { resolve_options(mixed, {}); });
  };
  JobOptions mixed = options;
  mixed.data.mix = {one + "=1", same + "=1"};
  resolve_options(mixed, {});
  EXPECT_EQ(task_of(mixed.model), ModelTask::classify);
  EXPECT_EQ(mixed.model.task.label_names, (std::vector<std::string>{"bad", "good"}));
  const JobData data = open_data(mixed);
  EXPECT_EQ(data.training->get(std::vector<std::int64_t>{0, 1, 20}).target.sizes(),
            (std::vector<std::int64_t>{3}));
  EXPECT_EQ(refusal(text),
            "data.mix: " + one + " has labels and " + text +
                " has none: say with task.name which task they are for, or leave one out");
  EXPECT_EQ(refusal(others), "data.mix: " + one + " has the labels bad, good and " + others +
                                 " has bad, fine: name all of them with task.labels and "
                                 "task.label_names");
  mixed.data.mix = {one + "=1", others + "=1"};
  mixed.model.task = {
      .name = ModelTask::classify, .labels = 3, .label_names = {"bad", "fine", "good"}};
  resolve_options(mixed, {});
  EXPECT_EQ(open_data(mixed).training->size(), 22);
  mixed.data.mix = {one + "=1", text + "=1"};
  mixed.model.task = {.name = ModelTask::mlm};
  resolve_options(mixed, {});
  EXPECT_EQ(open_data(mixed).training->size(), 22);
}

// Two corpora of different tokenisers.
class CorporaTest : public testing::Test {
 protected:
  CorporaTest() {
    for (const char* name : {"a", "b"}) {
      std::filesystem::create_directories(place_.path(name));
      place_.write(std::string(name) + "/vocab.txt",
                   "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\nplot\nis\nwarm\n" + std::string(name));
      write_corpus({place_.write("text.txt", text())}, Tokenizer::open(place_.path(name)),
                   corpus(name), {});
    }
    options_.model.context = 8;
    options_.train.validate_every = 0;
  }
  static std::string text() {
    std::string text;
    for (int i = 0; i < 40; ++i) text += "the plot is warm\n";
    return text;
  }
  std::string corpus(const std::string& name) const { return place_.path("corpus_" + name); }

  const Place place_;
  JobOptions options_;
};

TEST_F(CorporaTest, BringTheirTokeniserToAMixture) {
  options_.data.mix = {place_.path("text.txt") + "=1", corpus("a") + "=2"};
  options_.data.pack = false;
  resolve_options(options_, {});
  EXPECT_EQ(options_.data.tokenizer, corpus("a"));
  EXPECT_EQ(options_.model.vocab, 10);
  options_.data.mix = {corpus("a") + "=1"};
  const at::Tensor row = open_data(options_).training->get(std::vector<std::int64_t>{0}).input;
  EXPECT_LT(row.max().item<std::int64_t>(), 10) << "tokens, not the bytes of files";
}

TEST_F(CorporaTest, AreRefusedWithAnotherTokeniser) {
  options_.data.mix = {corpus("a") + "=1", corpus("b") + "=1"};
  resolve_options(options_, {});
  EXPECT_NE(thrown<InvalidArgument>([&] {
              open_data(options_);
            }).find("is not that of the corpus " + corpus("b")),
            std::string::npos);
}

TEST_F(CorporaTest, AreRefusedWithoutATokeniser) {
  options_.data.source = corpus("a");
  EXPECT_EQ(thrown<InvalidArgument>([&] { open_data(options_); }),
            "data.source = " + corpus("a") +
                " is a corpus of tokens, and no tokeniser is given: set data.tokenizer to the one "
                "in its folder, " +
                corpus("a"));
}

TEST(OpenEvaluation, ReadsAWholeFileWithTheLabelsOfTheModel) {
  const Place place;
  JobOptions options = place.options(place.labelled());
  resolve_options(options, {});
  place.write_model(options.model);
  DataOptions data;
  data.source = place.write("dev.tsv", "label\tsentence\ngood\tthe plot\nbad\tis dull\n1\twarm\n");
  const ModelOptions model = read_model_options(place.path());
  const JobData opened = open_evaluation(place.path(), model, data);
  EXPECT_EQ(opened.training, nullptr);
  ASSERT_EQ(opened.validation->size(), 3);
  const at::Tensor labels = opened.validation->get(std::vector<std::int64_t>{0, 1, 2}).target;
  EXPECT_EQ(labels[0].item<std::int64_t>(), 1);
  EXPECT_EQ(labels[1].item<std::int64_t>(), 0);
  EXPECT_EQ(labels[2].item<std::int64_t>(), 1);
  EXPECT_EQ(metrics_of(model).size(), 1U);
}

}  // namespace
}  // namespace echelon
