// Every rule about options: a job that breaks it and no other, and a fix that its sentence names.
#include "echelon/job/rules.h"

#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <set>

#include "echelon/base/error.h"
#include "echelon/base/options.h"
#include "tests/base/thrown.h"

namespace echelon {
namespace {

// A job, as options that differ from the default.
struct Example {
  std::string rule;
  std::vector<std::string> set;
  int ranks = 2;
  // The options that follow the advice; all of them are in the sentence, unless it has {fix}.
  std::vector<std::string> fix = {};
  std::string said = {};  // in the sentence, if the fix is not an assignment
  int fixed_ranks = 0;    // 0: the same
  std::function<void(JobRequest&)> arguments = [](JobRequest&) {};
};

const std::vector<Example>& examples() {
  static const std::vector<Example> all = {
      {"server options without servers", {"server.mode=async"}},
      {"servers of one rank", {"server.count=1"}, 1},
      {"servers and whole parameters",
       {"server.count=1", "optim.name=lamb"},
       2,
       {"optim.name=adamw"},
       "use adamw or sgd"},
      {"servers and fp16",
       {"server.count=1", "train.precision=fp16"},
       2,
       {"train.precision=bf16"},
       "use bf16"},
      {"servers and fp32 sums", {"server.count=1", "train.precision=bf16", "train.reduce=fp32"}},
      {"servers and GPUs", {"server.count=1", "train.device=cuda"}, 2, {"train.device=cpu"}},
      {"fp32 sums of wide gradients", {"train.reduce=fp32"}},
      {"less memory than a MiB", {"train.memory_mib=0.5"}},
      {"offload without ZeRO", {"zero.offload=host"}},
      {"offload to no folder",
       {"parallel.zero=2", "zero.offload=disk"},
       2,
       {"zero.offload_path=."},
       "set zero.offload_path"},
      {"a folder for no offload", {"zero.offload_path=."}},
      {"shards of hosts without ZeRO", {"zero.shard=host"}},
      {"ZeRO of one rank", {"parallel.zero=1"}, 1},
      {"a mesh and servers or sync", {"parallel.pipeline=2", "sync.adapt=true"}, 4},
      {"pipeline options without a pipeline", {"pipeline.balance=memory"}},
      {"interleaved with one chunk",
       {"parallel.pipeline=2", "pipeline.schedule=interleaved", "train.micro_batches=2"},
       2,
       {"pipeline.chunks=2"},
       "set pipeline.chunks to 2 or more"},
      {"scatter of whole gradients", {"parallel.zero=1", "zero.scatter=step"}},
      {"ZeRO and servers", {"parallel.zero=1", "server.count=1"}, 2, {"parallel.zero=0"}},
      {"ZeRO and sync", {"parallel.zero=1", "sync.adapt=true"}},
      {"shares by speed alone", {"parallel.shares=speed"}, 1},
      {"shares by speed in parts", {"parallel.shares=speed", "parallel.pipeline=2"}, 4},
      {"adapting alone", {"sync.adapt=true"}, 1},
      {"staleness alone", {"sync.allow_staleness=2"}, 1},
      {"a graph on a CPU", {"train.graph=on"}, 1, {"train.device=cuda"}},
      {"a graph of a pipeline",
       {"train.graph=on", "train.device=cuda", "parallel.pipeline=2"},
       2,
       {"train.graph=auto"},
       "use auto or off"},
      {"a graph and offload",
       {"train.graph=on", "train.device=cuda", "parallel.zero=1", "zero.offload=host"},
       1,
       {"train.graph=off"},
       "use auto or off"},
      {"more servers than ranks", {"server.count=3"}, 2, {}, "needs at least 3 ranks", 3},
      {"data ranks among servers", {"server.count=1", "parallel.data=2"}},
      {"an uneven mesh", {"parallel.pipeline=2"}, 3, {}, "start 2 or 4", 4},
      {"no such schedule",
       {"parallel.pipeline=2", "pipeline.schedule=interleaved", "pipeline.chunks=2",
        "train.micro_batches=3"},
       2,
       {"train.micro_batches=4"},
       "2 and 4 do"},
      {"a tensor group without a plan",
       {"parallel.tensor=2"},
       2,
       {},
       "give the trainer a SplitPlan",
       0,
       [](JobRequest& request) { request.options.split = {}; }},
      {"ZeRO over one data rank", {"parallel.zero=1", "parallel.pipeline=2"}},
      {"a batch of too few samples", {"train.batch=1"}, 2, {"train.batch=2"}},
      {"an optimiser that cannot be",
       {"optim.name=sgd", "optim.nesterov=true", "optim.momentum=0"},
       2,
       {"optim.momentum=0.9"},
       "optim.momentum is 0; give it a value such as 0.9"},
      {"a parameter group that cannot be",
       {"optim.groups=[\"*.bias decay=0\"]"},
       1,
       {"optim.groups=[\"*.bias: decay=0\"]"},
       "has no colon after the name"},
      {"a score that nothing compares", {"train.stop_metric=f1"}, 1},
      {"watching without validations", {"train.patience=2", "train.validate_every=0"}, 1},
      {"watching beside servers", {"train.keep_best=true", "server.count=1"}},
      {"arguments of a guest",
       {},
       1,
       {},
       "leave out --name",
       0,
       [](JobRequest& request) {
         request.join = "somewhere:1";
         request.name = "mine";
       }},
      {"a trace of exchanges in a mesh",
       {"parallel.tensor=2"},
       4,
       {},
       "leave it out",
       0,
       [](JobRequest& request) { request.trace_sync = true; }},
      {"a trace of no pipeline",
       {},
       2,
       {"parallel.pipeline=2"},
       "set parallel.pipeline",
       0,
       [](JobRequest& request) { request.trace_pipeline = true; }},
      {"a trace of a pipeline on GPUs",
       {"parallel.pipeline=2", "train.device=cuda"},
       2,
       {"train.device=cpu"},
       {},
       0,
       [](JobRequest& request) { request.trace_pipeline = true; }},
      {"a trace of exchanges with ZeRO",
       {"parallel.zero=1"},
       2,
       {},
       "leave it out",
       0,
       [](JobRequest& request) { request.trace_sync = true; }},
      {"a trace of no exchanges",
       {},
       1,
       {},
       "start several with --nproc",
       2,
       [](JobRequest& request) { request.trace_sync = true; }},
      {"a table of no exchanges",
       {},
       1,
       {},
       "start several with --nproc",
       2,
       [](JobRequest& request) { request.trace_buckets = true; }},
      {"adapting and one algorithm",
       {"sync.adapt=true", "comm.algorithm=ring"},
       2,
       {"comm.algorithm=auto"}},
      {"a graph over another backend",
       {"train.graph=on", "train.device=cuda"},
       2,
       {"comm.backend=nccl"}},
      {"a mixture and a source",
       {"data.source=book.txt", "data.mix=[\"code=7\", \"prose=2\"]"},
       1,
       {"data.source=stdlib"}},
      {"a mixture and one source of validation data",
       {"data.mix=[\"code=7\", \"prose=2\"]", "data.validation_source=dev.txt"},
       1,
       {"data.validation_source="},
       "leave data.validation_source out"},
      {"files of random tokens",
       {"data.source=random", "data.tokenizer=folder"},
       1,
       {"data.tokenizer="},
       "leave data.tokenizer and data.validation_source out"},
      {"columns of no records",
       {"data.source=book.txt", "data.label=sentiment"},
       1,
       {"data.source=book.tsv"},
       "data.label = sentiment is a column of records"},
  };
  return all;
}

JobRequest request_of(const Example& example) {
  JobRequest request;
  request.options.split = SplitPlan().column("a").row("b");
  for (const auto& one : example.set) set_option(fields_of(request.options), one);
  example.arguments(request);
  return request;
}

// By name, with what they say.
std::vector<std::pair<std::string, std::string>> broken(const JobRequest& request, int ranks) {
  std::vector<std::pair<std::string, std::string>> all;
  const PlanOptions& plan = request.options;
  for (const auto& rule : plan_rules())
    if (rule.broken(plan, ranks)) all.emplace_back(rule.name, sentence_of(rule, plan, ranks));
  for (const auto& rule : job_rules())
    if (rule.broken(request, ranks)) all.emplace_back(rule.name, sentence_of(rule, request, ranks));
  return all;
}

std::string listed(const std::vector<std::pair<std::string, std::string>>& rules) {
  std::string text;
  for (const auto& [name, sentence] : rules) text += fmt::format("[{}] {}\n", name, sentence);
  return text;
}

// "... or set a=1 and b=2": the text of {fix}.
std::vector<std::string> advised(const std::string& sentence) {
  std::vector<std::string> all;
  for (std::size_t at = 0; at < sentence.size();) {
    const std::size_t end = std::min(sentence.find(' ', at), sentence.size());
    std::string word = sentence.substr(at, end - at);
    while (!word.empty() && (word.back() == ',' || word.back() == ':')) word.pop_back();
    if (word.find('=') != std::string::npos) all.push_back(word);
    at = end + 1;
  }
  return all;
}

bool resets(const std::string& name) {
  for (const auto& rule : plan_rules())
    if (rule.name == name) return !rule.reset.empty();
  return false;
}

TEST(Rules, EachHasAnExampleThatBreaksItAlone) {
  std::set<std::string> shown;
  for (const auto& example : examples()) {
    const auto found = broken(request_of(example), example.ranks);
    ASSERT_EQ(found.size(), 1u) << example.rule << ":\n" << listed(found);
    EXPECT_EQ(found[0].first, example.rule) << found[0].second;
    shown.insert(example.rule);
  }
  for (const auto& rule : plan_rules())
    EXPECT_TRUE(shown.contains(std::string(rule.name))) << rule.name;
  for (const auto& rule : job_rules())
    EXPECT_TRUE(shown.contains(std::string(rule.name))) << rule.name;
  EXPECT_EQ(shown.size(), plan_rules().size() + job_rules().size()) << "names are unique";
}

TEST(Rules, NameAFixThatIsEnough) {
  for (const auto& example : examples()) {
    JobRequest request = request_of(example);
    const std::string sentence = broken(request, example.ranks).at(0).second;
    EXPECT_NE(sentence.find(example.said), std::string::npos) << sentence;
    std::vector<std::string> fix = example.fix;
    if (fix.empty() && resets(example.rule)) {
      const auto at = sentence.rfind("set ");
      ASSERT_NE(at, std::string::npos) << sentence;
      fix = advised(sentence.substr(at));
      ASSERT_FALSE(fix.empty()) << sentence;
    }
    for (const auto& one : fix) {
      if (example.said.empty()) {
        EXPECT_NE(sentence.find(one), std::string::npos) << one << " in: " << sentence;
      }
    }
    for (const auto& one : fix) set_option(fields_of(request.options), one);
    if (example.said.starts_with("leave")) {
      request.trace_sync = request.trace_buckets = request.trace_pipeline = false;
      request.name.clear();
    }
    if (request.options.split.rules().empty()) request.options.split = SplitPlan().column("a");
    const auto left =
        broken(request, example.fixed_ranks > 0 ? example.fixed_ranks : example.ranks);
    EXPECT_TRUE(left.empty()) << example.rule << ": " << sentence << "\nthen:\n" << listed(left);
  }
}

TEST(Rules, RefuseAJobBeforeThereAreRanksAndATrainerAlike) {
  for (const auto& example : examples()) {
    const JobRequest request = request_of(example);
    const std::string sentence = broken(request, example.ranks).at(0).second;
    EXPECT_EQ(thrown<InvalidArgument>([&] { check_rules(request, example.ranks); }), sentence);
    for (const auto& rule : plan_rules()) {
      if (rule.name != example.rule) continue;
      const PlanOptions& plan = request.options;
      EXPECT_EQ(thrown<InvalidArgument>([&] { require_can_run(plan, example.ranks); }),
                rule.breach == Breach::cannot_run ? sentence : "(nothing was thrown)");
    }
  }
}

TEST(Rules, WithUnknownNamesAreAMistakeOfTheCaller) {
  EXPECT_THROW(breaks("ZeRO and sevrers", {}, 1), Error);
}

}  // namespace
}  // namespace echelon
