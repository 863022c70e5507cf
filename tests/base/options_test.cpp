#include "echelon/base/options.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "echelon/base/error.h"
#include "echelon/base/file.h"
#include "tests/base/scratch_folder.h"
#include "tests/base/thrown.h"

namespace echelon {
namespace {

using Keys = std::vector<std::string>;

struct ScheduleOptions {
  std::int64_t warmup = 100;
  double floor = 0.1;

  void fields(Fields& f) {
    f.add("warmup", warmup, "length of the rise", {.minimum = 0, .unit = "steps"});
    f.add("floor", floor, "last rate over peak rate", {.minimum = 0, .maximum = 1});
  }
};

enum class Optimizer { adamw, sgd };
constexpr auto names_of(Optimizer) { return names("adamw", "sgd"); }

struct OptimOptions {
  double rate = 3e-4;
  Optimizer name = Optimizer::adamw;
  ScheduleOptions schedule;

  void fields(Fields& f) {
    f.add("rate", rate, "peak learning rate",
          {.minimum = 0, .above_minimum = true, .known_as = {"lr"}});
    f.section("schedule", schedule);
    f.add("name", name, "the optimiser");
  }
};

struct ModelOptions {
  std::int64_t layers = 4;
  bool bias = true;

  void fields(Fields& f) {
    f.add("layers", layers, "number of blocks", {.minimum = 1, .maximum = 1000});
    f.add("bias", bias, "add biases");
  }
};

struct Job {
  ModelOptions model;
  OptimOptions optim;
  std::string title = "untitled";
  std::vector<std::string> tags = {};
  std::vector<std::string> parts = {"a"};
  std::int64_t seed = 0;

  void fields(Fields& f) {
    f.section("model", model);
    f.section("optim", optim);
    f.add("title", title, "what this run is called");
    f.add("tags", tags, "words to find it by");
    f.add("parts", parts, "what to run", {.choices = {"a", "b", "c"}});
    f.add("seed", seed, "seed of everything");
  }
};

Keys read(Job& job, const std::string& text) { return read_toml(fields_of(job), text, "job.toml"); }

std::string refusal(const std::string& text) {
  Job job;
  return thrown<InvalidArgument>([&] { read(job, text); });
}

std::string set(Job& job, const std::string& assignment) {
  return set_option(fields_of(job), assignment);
}

std::string refusal_to_set(const std::string& assignment) {
  Job job;
  return thrown<InvalidArgument>([&] { set(job, assignment); });
}

// ---- reading TOML

TEST(ReadToml, SetsEveryKindOfValue) {
  Job job;
  read(job, R"(
title = "a \"run\""
tags = ["x", "y z"]
seed = 9223372036854775807
[model]
layers = 12
bias = false
[optim]
rate = 1e-3
name = "sgd"
schedule.warmup = 10
)");
  EXPECT_EQ(job.title, "a \"run\"");
  EXPECT_EQ(job.tags, (Keys{"x", "y z"}));
  EXPECT_EQ(job.seed, std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(job.model.layers, 12);
  EXPECT_FALSE(job.model.bias);
  EXPECT_EQ(job.optim.rate, 1e-3);
  EXPECT_EQ(job.optim.name, Optimizer::sgd);
  EXPECT_EQ(job.optim.schedule.warmup, 10);
  EXPECT_EQ(job.optim.schedule.floor, 0.1);
}

TEST(ReadToml, ReturnsTheGivenKeysInTheirOrder) {
  Job job;
  EXPECT_EQ(
      read(job,
           "title = 'z'\nseed = 1\n[optim]\nrate = 1\n[model]\nlayers = 2\nbias = true\n"
           "[optim.schedule]\nwarmup = 1\n"),
      (Keys{"title", "seed", "optim.rate", "model.layers", "model.bias", "optim.schedule.warmup"}));
  EXPECT_EQ(read(job, ""), Keys{});
  EXPECT_EQ(read(job, "optim = {name = 'sgd', rate = 1}"), (Keys{"optim.name", "optim.rate"}));
}

TEST(ReadToml, TakesAnIntegerForANumber) {
  Job job;
  read(job, "[optim]\nrate = 2");
  EXPECT_EQ(job.optim.rate, 2.0);
}

TEST(ReadToml, NamesTheNearestKeyForAnUnknownOne) {
  EXPECT_EQ(refusal("\n[optim]\nrat = 1"),
            "optim.rat is not a known key (job.toml, line 3); did you mean optim.rate?");
  EXPECT_EQ(refusal("tilte = 'x'"),
            "tilte is not a known key (job.toml, line 1); did you mean title?");
  EXPECT_EQ(refusal("[optim]\nschedule.warm-up = 1"),
            "optim.schedule.warm-up is not a known key (job.toml, line 2); "
            "did you mean optim.schedule.warmup?");
  EXPECT_EQ(refusal("frobnicate = 1"), "frobnicate is not a known key (job.toml, line 1)");
}

TEST(ReadToml, FindsAKeyThatStandsInTheWrongSection) {
  EXPECT_EQ(refusal("rate = 1"),
            "rate is not a known key (job.toml, line 1); did you mean optim.rate?");
  EXPECT_EQ(refusal("[model]\nseed = 1"),
            "model.seed is not a known key (job.toml, line 2); did you mean seed?");
}

TEST(ReadToml, NamesTheNearestSectionForAnUnknownOne) {
  EXPECT_EQ(refusal("[modle]\nlayers = 1"),
            "modle is not a known section (job.toml, line 1); did you mean model?");
  EXPECT_EQ(refusal("[zzz]"), "zzz is not a known section (job.toml, line 1)");
  EXPECT_EQ(
      refusal("[optim.shedule]\nwarmup = 1"),
      "optim.shedule is not a known section (job.toml, line 1); did you mean optim.schedule?");
}

TEST(ReadToml, DoesNotTakeAQuotedDotForASection) {
  EXPECT_EQ(refusal("\"optim.rate\" = 1"),
            "\"optim.rate\" is not a known key (job.toml, line 1); did you mean optim.rate?");
}

TEST(ReadToml, RefusesAWrongType) {
  EXPECT_EQ(refusal("[model]\nlayers = 'four'"),
            "model.layers must be an integer, but \"four\" was given (job.toml, line 2)");
  EXPECT_EQ(refusal("[model]\nlayers = 1e3"),
            "model.layers must be an integer, but 1000.0 was given (job.toml, line 2)");
  EXPECT_EQ(refusal("[model]\nbias = 1"),
            "model.bias must be true or false, but 1 was given (job.toml, line 2)");
  EXPECT_EQ(refusal("[optim]\nrate = true"),
            "optim.rate must be a number, but true was given (job.toml, line 2)");
  EXPECT_EQ(refusal("title = 3"), "title must be a string, but 3 was given (job.toml, line 1)");
  EXPECT_EQ(refusal("title = ['x']"),
            "title must be a string, but a list was given (job.toml, line 1)");
  EXPECT_EQ(refusal("seed = 1979-05-27"),
            "seed must be an integer, but a date or time was given (job.toml, line 1)");
  EXPECT_EQ(refusal("tags = ['x', 1]"),
            "tags must be a list of strings, but a list was given (job.toml, line 1)");
  EXPECT_EQ(refusal("tags = 'x'"),
            "tags must be a list of strings, but \"x\" was given (job.toml, line 1)");
  EXPECT_EQ(refusal("[title]\nx = 1"),
            "title must be a string, but a section was given (job.toml, line 1)");
}

TEST(ReadToml, RefusesAValueForASection) {
  EXPECT_EQ(refusal("optim = 3"),
            "optim is a section with keys of its own, but 3 was given (job.toml, line 1)");
  EXPECT_EQ(refusal("[[optim]]\nrate = 1"),
            "optim is a section with keys of its own, but a list was given (job.toml, line 1)");
}

TEST(ReadToml, RefusesNumbersOutOfBounds) {
  EXPECT_EQ(refusal("[model]\nlayers = 0"),
            "model.layers must be at least 1 and at most 1000, but 0 was given (job.toml, line 2)");
  EXPECT_EQ(
      refusal("[model]\nlayers = 1001"),
      "model.layers must be at least 1 and at most 1000, but 1001 was given (job.toml, line 2)");
  EXPECT_EQ(refusal("[optim]\nrate = 0.0"),
            "optim.rate must be more than 0, but 0 was given (job.toml, line 2)");
  EXPECT_EQ(refusal("[optim.schedule]\nwarmup = -1"),
            "optim.schedule.warmup must be at least 0, but -1 was given (job.toml, line 2)");
  EXPECT_EQ(refusal("[optim.schedule]\nfloor = 1.5"),
            "optim.schedule.floor must be at least 0 and at most 1, but 1.5 was given "
            "(job.toml, line 2)");
}

TEST(ReadToml, TakesTheBoundsThemselves) {
  Job job;
  read(job, "[model]\nlayers = 1000\n[optim.schedule]\nfloor = 1\nwarmup = 0");
  EXPECT_EQ(job.model.layers, 1000);
  EXPECT_EQ(job.optim.schedule.floor, 1);
}

TEST(ReadToml, RefusesWhatIsNotFinite) {
  EXPECT_EQ(refusal("[optim]\nrate = inf"),
            "optim.rate must be a finite number, but inf was given (job.toml, line 2)");
  EXPECT_EQ(refusal("[optim]\nrate = nan"),
            "optim.rate must be a finite number, but nan was given (job.toml, line 2)");
}

TEST(ReadToml, RefusesWhatIsNotAmongTheChoices) {
  EXPECT_EQ(refusal("[optim]\nname = 'adam'"),
            "optim.name is \"adam\" (job.toml, line 2); allowed: adamw, sgd (did you mean adamw?)");
  EXPECT_EQ(refusal("[optim]\nname = 'lamb'"),
            "optim.name is \"lamb\" (job.toml, line 2); allowed: adamw, sgd");
  EXPECT_EQ(refusal("parts = ['a', 'd9']"), "parts is \"d9\" (job.toml, line 1); allowed: a, b, c");
}

TEST(ReadToml, TellsTheLineOfASyntaxError) {
  EXPECT_NE(refusal("seed = 1\ntitle = \n").find("(job.toml, line 2)"), std::string::npos);
  EXPECT_NE(refusal("seed = 1\n\n]").find("(job.toml, line 3)"), std::string::npos);
  EXPECT_NE(refusal("title = 'unended").find("(job.toml, line 1)"), std::string::npos);
  EXPECT_TRUE(refusal("a b").starts_with("this is not TOML: ")) << refusal("a b");
  EXPECT_NE(refusal("title = '\xff'").find("(job.toml, line 1)"), std::string::npos);
}

TEST(ReadToml, RefusesAKeyOrSectionThatComesTwice) {
  EXPECT_NE(refusal("seed = 1\nseed = 1").find("(job.toml, line 2)"), std::string::npos);
  EXPECT_NE(refusal("[optim]\nrate = 1\n[optim]\nrate = 2").find("(job.toml, line 3)"),
            std::string::npos);
}

TEST(ReadToml, ChangesNothingWhenOneValueIsRefused) {
  Job job;
  EXPECT_NE(
      thrown<InvalidArgument>([&] { read(job, "seed = 5\ntitle = 'new'\n[model]\nlayers = 0"); }),
      "(nothing was thrown)");
  EXPECT_EQ(job.seed, 0);
  EXPECT_EQ(job.title, "untitled");
}

TEST(ReadToml, IsOneSentenceOnOneLine) {
  for (const auto* text : {"seed = ", "[optim", "x = {", "title = \"\"\"\nabc", "a = [1,\n2"}) {
    EXPECT_EQ(refusal(text).find('\n'), std::string::npos) << refusal(text);
  }
}

TEST(ReadTomlFile, NamesTheFile) {
  const ScratchFolder folder;
  const auto path = folder / "job.toml";
  write_file(path, "seed = 8\nsead = 9\n");
  Job job;
  EXPECT_EQ(thrown<InvalidArgument>([&] { read_toml_file(fields_of(job), path); }),
            "sead is not a known key (" + path.string() + ", line 2); did you mean seed?");
  write_file(path, "seed = 8\n");
  EXPECT_EQ(read_toml_file(fields_of(job), path), Keys{"seed"});
  EXPECT_EQ(job.seed, 8);
  EXPECT_EQ(thrown<Error>([&] { read_toml_file(fields_of(job), folder / "none"); }),
            "cannot read " + (folder / "none").string() + ": No such file or directory");
}

// ---- --set

TEST(SetOption, SetsEveryKindOfValueAndReturnsTheKey) {
  Job job;
  EXPECT_EQ(set(job, "model.layers=12"), "model.layers");
  EXPECT_EQ(set(job, "model.bias=false"), "model.bias");
  EXPECT_EQ(set(job, "optim.rate=1e-3"), "optim.rate");
  EXPECT_EQ(set(job, "optim.schedule.floor=1"), "optim.schedule.floor");
  EXPECT_EQ(set(job, "optim.name=sgd"), "optim.name");
  EXPECT_EQ(set(job, "parts=c,a"), "parts");
  EXPECT_EQ(job.model.layers, 12);
  EXPECT_FALSE(job.model.bias);
  EXPECT_EQ(job.optim.rate, 1e-3);
  EXPECT_EQ(job.optim.schedule.floor, 1);
  EXPECT_EQ(job.optim.name, Optimizer::sgd);
  EXPECT_EQ(job.parts, (Keys{"c", "a"}));
}

TEST(SetOption, TakesWholeNumbersHoweverTheyAreWritten) {
  Job job;
  const auto seed = [&](const std::string& text) {
    set(job, "seed=" + text);
    return job.seed;
  };
  EXPECT_EQ(seed("1e3"), 1000);
  EXPECT_EQ(seed("2.5e1"), 25);
  EXPECT_EQ(seed("1E+3"), 1000);
  EXPECT_EQ(seed("3.0"), 3);
  EXPECT_EQ(seed("1200e-2"), 12);
  EXPECT_EQ(seed("-7"), -7);
  EXPECT_EQ(seed("+7"), 7);
  EXPECT_EQ(seed(" 8 "), 8);
  EXPECT_EQ(seed("1_000_000"), 1000000);
  EXPECT_EQ(seed("0"), 0);
  EXPECT_EQ(seed("0e5"), 0);
  EXPECT_EQ(seed("-0.0"), 0);
  EXPECT_EQ(seed("9223372036854775807"), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(seed("-9223372036854775808"), std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(seed("9007199254740993.0"), 9007199254740993);  // no double has this value
}

TEST(SetOption, RefusesNumbersThatAreNotWhole) {
  for (const std::string text : {"1.5",
                                 "1e-3",
                                 "four",
                                 "",
                                 " ",
                                 "1 2",
                                 "0x10",
                                 "1e",
                                 "--1",
                                 "+-1",
                                 "_1",
                                 "1_",
                                 "1__0",
                                 "nan",
                                 "inf",
                                 "9223372036854775808",
                                 "1e19",
                                 "1e999999999999999999999",
                                 "9007199254740992.5",
                                 "1,0",
                                 "1e3x"}) {
    EXPECT_EQ(refusal_to_set("seed=" + text),
              "seed must be an integer, but \"" + text + "\" was given (--set seed=" + text + ")");
  }
}

TEST(SetOption, RefusesWhatIsNoNumber) {
  for (const std::string text : {"fast", "", "1e-3x", "1..2", "0x1p3", "1e400", "- 1"}) {
    EXPECT_EQ(refusal_to_set("optim.rate=" + text), "optim.rate must be a number, but \"" + text +
                                                        "\" was given (--set optim.rate=" + text +
                                                        ")");
  }
  EXPECT_EQ(refusal_to_set("optim.rate=inf"),
            "optim.rate must be a finite number, but inf was given (--set optim.rate=inf)");
  EXPECT_EQ(refusal_to_set("optim.rate=nan"),
            "optim.rate must be a finite number, but nan was given (--set optim.rate=nan)");
}

TEST(SetOption, RefusesWordsForTrueAndFalse) {
  for (const std::string text : {"yes", "1", "True", ""}) {
    EXPECT_EQ(refusal_to_set("model.bias=" + text),
              "model.bias must be true or false, but \"" + text +
                  "\" was given (--set model.bias=" + text + ")");
  }
}

TEST(SetOption, ChecksBoundsAndChoices) {
  EXPECT_EQ(
      refusal_to_set("model.layers=0"),
      "model.layers must be at least 1 and at most 1000, but 0 was given (--set model.layers=0)");
  EXPECT_EQ(
      refusal_to_set("optim.name=adam"),
      "optim.name is \"adam\" (--set optim.name=adam); allowed: adamw, sgd (did you mean adamw?)");
  EXPECT_EQ(refusal_to_set("parts=a,z9"), "parts is \"z9\" (--set parts=a,z9); allowed: a, b, c");
}

TEST(SetOption, RefusesUnknownKeysAndSections) {
  EXPECT_EQ(refusal_to_set("optim.rat=1"),
            "optim.rat is not a known key (--set optim.rat=1); did you mean optim.rate?");
  EXPECT_EQ(refusal_to_set("optim=1"), "optim is not a known key (--set optim=1)");
  EXPECT_EQ(refusal_to_set("optim.rate"), "--set takes key=value, but \"optim.rate\" was given");
  EXPECT_EQ(refusal_to_set("=1"), "--set takes key=value, but \"=1\" was given");
  EXPECT_EQ(refusal_to_set(""), "--set takes key=value, but \"\" was given");
}

TEST(SetOption, TakesTextWithOrWithoutQuotes) {
  Job job;
  const auto title = [&](const std::string& text) {
    set(job, "title=" + text);
    return job.title;
  };
  EXPECT_EQ(title("plain words = and #more"), "plain words = and #more");
  EXPECT_EQ(title(""), "");
  EXPECT_EQ(title("3"), "3");
  EXPECT_EQ(title("\"with \\\"escapes\\n\""), "with \"escapes\n");
  EXPECT_EQ(title("'single \\n'"), "single \\n");
  EXPECT_EQ(title("\"it\" is \"so\""), "\"it\" is \"so\"");  // no TOML string: taken as it is
  EXPECT_EQ(title("'x'\nseed = 3"), "'x'\nseed = 3");
  EXPECT_EQ(job.seed, 0);
}

TEST(SetOption, TakesListsWithCommasOrAsToml) {
  Job job;
  const auto tags = [&](const std::string& text) {
    set(job, "tags=" + text);
    return job.tags;
  };
  EXPECT_EQ(tags("x"), Keys{"x"});
  EXPECT_EQ(tags("x, y z ,w"), (Keys{"x", "y z", "w"}));
  EXPECT_EQ(tags("[\"a,b\", 'c']"), (Keys{"a,b", "c"}));
  EXPECT_EQ(tags("[]"), Keys{});
  EXPECT_EQ(tags(""), Keys{});
  for (const std::string text : {"x,", ",x", "x,,y", ",", "[1]", "[x]", "['x'"}) {
    EXPECT_EQ(refusal_to_set("tags=" + text), "tags must be a list of strings, but \"" + text +
                                                  "\" was given (--set tags=" + text + ")");
  }
}

TEST(SetOption, RefusesTextThatTomlCannotHold) {
  EXPECT_EQ(refusal_to_set("title=\xff"), "title must be UTF-8 text, but other bytes were given");
  EXPECT_EQ(refusal_to_set("tags=a,\xc3"), "tags must be UTF-8 text, but other bytes were given");
}

// ---- printing

TEST(ToToml, PrintsSectionsWithTheirKeys) {
  Job job;
  job.tags = {"x", "y\"z"};
  EXPECT_EQ(to_toml(fields_of(job), Comments::no), R"(title = "untitled"
tags = ["x", "y\"z"]
parts = ["a"]
seed = 0

[model]
layers = 4
bias = true

[optim]
rate = 0.0003
name = "adamw"

[optim.schedule]
warmup = 100
floor = 0.1
)");
}

TEST(ToToml, ExplainsEveryKeyWithComments) {
  OptimOptions optim;
  EXPECT_EQ(to_toml(fields_of(optim), Comments::yes), R"(# peak learning rate; more than 0
rate = 0.0003
# the optimiser; one of: adamw, sgd
name = "adamw"

[schedule]
# length of the rise, in steps; at least 0
warmup = 100
# last rate over peak rate; at least 0 and at most 1
floor = 0.1
)");
}

TEST(ToToml, IsReadBackToTheSameValues) {
  Job job;
  job.title.clear();
  for (char c = 0; c < 0x7f; ++c) job.title += c;
  job.title += "\x7f äöü 漢字 \U0001F600";
  job.tags = {"", "\\", "\"", "a\nb", "#", "'"};
  job.parts = {};
  job.model.bias = false;
  job.seed = std::numeric_limits<std::int64_t>::min();
  for (const auto comments : {Comments::no, Comments::yes}) {
    Job copy;
    EXPECT_EQ(read(copy, to_toml(fields_of(job), comments)).size(), fields_of(job).all().size());
    EXPECT_EQ(copy.title, job.title);
    EXPECT_EQ(copy.tags, job.tags);
    EXPECT_EQ(copy.parts, job.parts);
    EXPECT_EQ(copy.model.bias, job.model.bias);
    EXPECT_EQ(copy.seed, job.seed);
  }
}

struct Number {
  double value = 0;
  void fields(Fields& f) { f.add("value", value, "any number"); }
};

TEST(ToToml, KeepsDoublesToTheLastBit) {
  using Limits = std::numeric_limits<double>;
  std::vector<double> values = {0.0,
                                -0.0,
                                1.0,
                                -3.0,
                                0.1,
                                1.0 / 3,
                                1e-5,
                                1e-4,
                                1e15,
                                1e16,
                                1e17,
                                1e22,
                                1e23,
                                3e-4,
                                1e300,
                                2.5e-310,
                                1e100,
                                Limits::max(),
                                Limits::min(),
                                Limits::denorm_min(),
                                Limits::lowest(),
                                1 + Limits::epsilon(),
                                9007199254740993.0,
                                123456789.123456789};
  for (int i = 1; i < 2000; ++i) values.push_back(std::sin(i) * std::pow(10.0, i % 600 - 300));
  for (const double value : values) {
    Number number{value};
    const auto text = to_toml(fields_of(number), Comments::no);
    Number copy{7};
    read_toml(fields_of(copy), text, "copy");
    EXPECT_EQ(copy.value, value) << text;
    EXPECT_EQ(std::signbit(copy.value), std::signbit(value)) << text;
    copy.value = 7;
    set_option(fields_of(copy), "value=" + text.substr(8, text.size() - 9));
    EXPECT_EQ(copy.value, value) << text;
  }
}

TEST(ToMarkdown, HasARowForEveryKey) {
  Job job;
  job.title = "a|b";
  EXPECT_EQ(to_markdown(fields_of(job)), R"(| key | default | allowed | meaning |
|---|---|---|---|
| `model.layers` | `4` | at least 1 and at most 1000 | number of blocks |
| `model.bias` | `true` |  | add biases |
| `optim.rate` | `0.0003` | more than 0 | peak learning rate |
| `optim.schedule.warmup` | `100` | at least 0 | length of the rise, in steps |
| `optim.schedule.floor` | `0.1` | at least 0 and at most 1 | last rate over peak rate |
| `optim.name` | `"adamw"` | adamw, sgd | the optimiser |
| `title` | `"a\|b"` |  | what this run is called |
| `tags` | `[]` |  | words to find it by |
| `parts` | `["a"]` | a, b, c | what to run |
| `seed` | `0` |  | seed of everything |
)");
}

// ---- fields

TEST(Fields, PointIntoTheStruct) {
  Job job;
  const auto fields = fields_of(job);
  EXPECT_EQ(fields.all().front().key, "model.layers");
  EXPECT_EQ(std::get<std::int64_t*>(fields.all().front().value), &job.model.layers);
}

TEST(Fields, RefuseANameTwiceOrOneThatTomlWouldQuote) {
  Fields fields;
  bool value = false;
  fields.add("a", value, "");
  EXPECT_EQ(thrown<InvalidArgument>([&] { fields.add("a", value, ""); }),
            "the option a is defined twice");
  EXPECT_EQ(thrown<InvalidArgument>([&] { fields.add("a b", value, ""); }),
            "the option \"a b\" needs a name of letters, digits, _ and -");
  EXPECT_EQ(thrown<InvalidArgument>([&] { fields.add("", value, ""); }),
            "the option \"\" needs a name of letters, digits, _ and -");
}

TEST(Fields, OfAnEnumAreReadAndPrintedByName) {
  Job job;
  EXPECT_EQ(set_option(fields_of(job), "optim.name=sgd"), "optim.name");
  EXPECT_EQ(job.optim.name, Optimizer::sgd);
  const auto fields = fields_of(job);
  const auto name = std::ranges::find(fields.all(), std::string("optim.name"), &Fields::Field::key);
  EXPECT_EQ(text_of(*name), "sgd");
  EXPECT_NE(to_toml(fields, Comments::no).find("name = \"sgd\""), std::string::npos);
  EXPECT_EQ(
      thrown<InvalidArgument>([&] { set_option(fields, "optim.name=sdg"); }),
      "optim.name is \"sdg\" (--set optim.name=sdg); allowed: adamw, sgd (did you mean sgd?)");
  EXPECT_EQ(thrown<InvalidArgument>([&] { read_toml(fields, "optim.name = 1", "job.toml"); }),
            "optim.name must be a string, but 1 was given (job.toml, line 1)");
  EXPECT_EQ(job.optim.name, Optimizer::sgd) << "a refused value changes nothing";
}

TEST(Fields, OfAnEnumMayAllowSomeOfItsValues) {
  Optimizer only = Optimizer::adamw;
  Fields fields;
  fields.add("only", only, "", {.choices = {"adamw"}});
  EXPECT_EQ(thrown<InvalidArgument>([&] { set_option(fields, "only=sgd"); }),
            "only is \"sgd\" (--set only=sgd); allowed: adamw");
}

TEST(Fields, RefuseAValueThatAnEnumDoesNotHave) {
  Job job;
  job.optim.name = Optimizer(2);
  EXPECT_EQ(thrown<InvalidArgument>([&] { check_options(fields_of(job)); }),
            "optim.name is \"value 2\" (set in code); allowed: adamw, sgd");
}

TEST(Fields, SuggestWhatAnotherProgramsNameMeans) {
  Job job;
  EXPECT_EQ(thrown<InvalidArgument>([&] { set_option(fields_of(job), "optim.lr=1"); }),
            "optim.lr is not a known key (--set optim.lr=1); did you mean optim.rate?");
}

TEST(NamedEnum, IsFoundByItsName) {
  EXPECT_EQ(name_of(Optimizer::sgd), "sgd");
  EXPECT_EQ(from_name<Optimizer>("adamw"), Optimizer::adamw);
  EXPECT_EQ(thrown<InvalidArgument>([] { from_name<Optimizer>("adam"); }),
            "\"adam\" is not one of adamw, sgd; did you mean adamw?");
}

// ---- nearest

TEST(Nearest, FindsTypingMistakes) {
  const Keys known = {"layers", "heads", "width", "micro_batch", "rate"};
  EXPECT_EQ(nearest("layer", known), "layers");
  EXPECT_EQ(nearest("laeyrs", known), "layers");  // two exchanged letters are one mistake
  EXPECT_EQ(nearest("LAYERS", known), "layers");
  EXPECT_EQ(nearest("micro-batch", known), "micro_batch");
  EXPECT_EQ(nearest("microbatch", known), "micro_batch");
  EXPECT_EQ(nearest("with", known), "width");
  EXPECT_EQ(nearest("rate", known), "rate");
}

TEST(Nearest, FindsNothingThatIsFar) {
  EXPECT_EQ(nearest("dropout", {"layers", "heads"}), "");
  EXPECT_EQ(nearest("", {"a", "b"}), "");
  EXPECT_EQ(nearest("x", {"y"}), "");
  EXPECT_EQ(nearest("rate", {}), "");
}

TEST(Nearest, PrefersTheSmallestDistance) {
  EXPECT_EQ(nearest("abcdefgh", {"abcdefxy", "abcdefgx", "abxdefgx"}), "abcdefgx");
}

}  // namespace
}  // namespace echelon
