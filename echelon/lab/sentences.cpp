#include "echelon/lab/sentences.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <span>
#include <unordered_set>

#include "echelon/base/error.h"
#include "echelon/base/random.h"

namespace echelon {
namespace {

using Words = std::span<const std::string_view>;

constexpr std::array<std::string_view, 44> good_adjectives = {
    "superb",   "moving",     "charming", "gripping",  "witty",     "brilliant", "clever",
    "graceful", "lovely",     "tender",   "thrilling", "warm",      "vivid",     "honest",
    "elegant",  "delightful", "funny",    "touching",  "radiant",   "stirring",  "subtle",
    "wise",     "playful",    "gorgeous", "memorable", "inventive", "sincere",   "bold",
    "fresh",    "refreshing", "powerful", "poignant",  "hilarious", "nimble",    "dazzling",
    "engaging", "generous",   "lively",   "polished",  "sharp",     "rich",      "soulful",
    "luminous", "joyous"};
constexpr std::array<std::string_view, 44> bad_adjectives = {
    "dull",     "clumsy",      "tedious",   "bland",    "shallow", "lifeless",   "awkward",
    "noisy",    "stale",       "hollow",    "messy",    "boring",  "lazy",       "predictable",
    "sloppy",   "ugly",        "pointless", "tiresome", "wooden",  "grating",    "muddled",
    "forced",   "flat",        "feeble",    "cheap",    "dreary",  "smug",       "painful",
    "weak",     "crude",       "dismal",    "gloomy",   "silly",   "mechanical", "bloated",
    "confused", "pretentious", "lame",      "murky",    "shrill",  "trite",      "vapid",
    "insipid",  "leaden"};
constexpr std::array<std::string_view, 14> good_nouns = {
    "charm",  "wit",   "warmth",  "grace",       "energy", "heart",   "wisdom",
    "beauty", "depth", "courage", "imagination", "style",  "tension", "soul"};
constexpr std::array<std::string_view, 14> bad_nouns = {
    "boredom", "noise",    "nonsense", "padding", "vanity",  "confusion", "laziness",
    "filler",  "cynicism", "pretence", "kitsch",  "bluster", "gloom",     "clutter"};
constexpr std::array<std::string_view, 10> good_verbs = {
    "delights",  "moves",    "charms",    "amuses", "rewards",
    "impresses", "enchants", "surprises", "shines", "dazzles"};
constexpr std::array<std::string_view, 10> bad_verbs = {
    "bores",   "annoys", "disappoints", "irritates", "frustrates",
    "insults", "tires",  "drags",       "stumbles",  "grates"};
constexpr std::array<std::string_view, 24> parts_of_a_film = {
    "film",     "story",  "plot",    "cast",    "script",  "ending",  "music",       "pacing",
    "dialogue", "camera", "editing", "hero",    "villain", "romance", "soundtrack",  "opening",
    "finale",   "humour", "sequel",  "premise", "staging", "acting",  "documentary", "direction"};
constexpr std::array<std::string_view, 6> strongly = {"very",       "really", "truly",
                                                      "remarkably", "deeply", "utterly"};
constexpr std::array<std::string_view, 4> weakly = {"somewhat", "slightly", "a little", "mildly"};
constexpr std::array<std::string_view, 6> negations = {"not",         "never",    "hardly",
                                                       "by no means", "far from", "anything but"};

struct Form;

// The random choices of one sentence.
class Draw {
 public:
  Draw(Key key, std::uint64_t index) : key_(key), index_(index) {}

  std::span<const Form* const> other_forms = {};  // of clauses beside the deciding one

  std::uint64_t below(std::uint64_t n) {
    if (used_ % 4 == 0) words_ = philox(key_, used_ / 4, index_);
    return (std::uint64_t{words_[used_++ % 4]} * n) >> 32;
  }
  std::string_view of(Words words) { return words[below(words.size())]; }
  std::string_view one(std::initializer_list<std::string_view> words) {
    return words.begin()[below(words.size())];
  }
  std::string_view adjective(bool good) { return good ? of(good_adjectives) : of(bad_adjectives); }
  std::string_view noun(bool good) { return good ? of(good_nouns) : of(bad_nouns); }
  std::string_view verb(bool good) { return good ? of(good_verbs) : of(bad_verbs); }
  std::string_view part() { return of(parts_of_a_film); }

 private:
  Key key_;
  std::uint64_t index_, used_ = 0;
  std::array<std::uint32_t, 4> words_ = {};
};

// What a clause says of its subject. `good`: it praises it.
struct Form {
  std::string_view name;
  int weight;
  std::string (*predicate)(Draw& draw, bool good);
};

constexpr Form forms[] = {
    {"is", 10, [](Draw& d, bool good) { return fmt::format("is {}", d.adjective(good)); }},
    {"is strongly", 8,
     [](Draw& d, bool good) {
       const auto degree = d.of(strongly);
       return fmt::format("is {} {}", degree, d.adjective(good));
     }},
    {"negation", 4,
     [](Draw& d, bool good) {
       const auto negation = d.of(negations);
       return fmt::format("is {} {}", negation, d.adjective(!good));
     }},
    {"verb", 5, [](Draw& d, bool good) { return std::string(d.verb(good)); }},
    {"never", 2, [](Draw& d, bool good) { return fmt::format("never {}", d.verb(!good)); }},
    {"has", 5,
     [](Draw& d, bool good) {
       const auto much = d.one({"plenty of", "real", "so much"});
       return fmt::format("has {} {}", much, d.noun(good));
     }},
    {"lacks", 2,
     [](Draw& d, bool good) {
       const auto lacks = d.one({"lacks", "avoids", "is free of", "is short on"});
       return fmt::format("{} {}", lacks, d.noun(!good));
     }},
    {"double negation", 2,
     [](Draw& d, bool good) { return fmt::format("is not without {}", d.noun(good)); }},
    {"fails", 2,
     [](Draw& d, bool good) {
       const auto fails = d.one({"fails", "refuses"});
       return fmt::format("{} to be {}", fails, d.adjective(!good));
     }},
    {"comparison", 1,
     [](Draw& d, bool good) {
       const auto more = d.adjective(good);
       return fmt::format("is more {} than {}", more, d.adjective(!good));
     }},
    {"contrast", 1,
     [](Draw& d, bool good) {
       const auto is = d.adjective(good);
       const auto and_not = d.one({"instead of", "rather than"});
       return fmt::format("is {} {} {}", is, and_not, d.adjective(!good));
     }},
    {"not only", 1,
     [](Draw& d, bool good) {
       const auto first = d.adjective(good);
       return fmt::format("is not only {} but also {}", first, d.adjective(good));
     }},
    {"intensity", 2,
     [](Draw& d, bool good) {
       const auto little = d.of(weakly), minor = d.adjective(!good), much = d.of(strongly);
       return fmt::format("is {} {} but {} {}", little, minor, much, d.adjective(good));
     }},
    {"hard to call", 1,
     [](Draw& d, bool good) {
       const auto hard = d.one({"could hardly be called", "is hard to call"});
       return fmt::format("{} {}", hard, d.adjective(!good));
     }},
};

// A row of a table, by its weight.
template <class Row>
const Row& by_weight(Draw& draw, std::span<const Row* const> rows) {
  int all = 0;
  for (const auto* row : rows) all += row->weight;
  auto left = static_cast<int>(draw.below(std::uint64_t(all)));
  for (const auto* row : rows)
    if ((left -= row->weight) < 0) return *row;
  return *rows.back();
}

std::string clause(Draw& draw, const Form& form, bool good) {
  const auto subject = draw.part();
  return fmt::format("the {} {}", subject, form.predicate(draw, good));
}

std::string other_clause(Draw& draw, bool good) {
  return clause(draw, by_weight(draw, draw.other_forms), good);
}

// What is around the clause that decides, and what that does to it.
struct Frame {
  std::string_view name;
  int weight;
  bool turns;  // the sentence means the opposite of its deciding clause
  std::string (*around)(Draw& draw, bool good, const std::string& clause);
};

constexpr Frame frames[] = {
    {"plain", 14, false, [](Draw&, bool, const std::string& clause) { return clause; }},
    {"comment", 6, false,
     [](Draw& d, bool, const std::string& clause) {
       const auto comment = d.one({"in the end", "for once", "after an hour", "to my surprise"});
       return fmt::format("{} , {}", comment, clause);
     }},
    {"and", 8, false,
     [](Draw& d, bool good, const std::string& clause) {
       return fmt::format("{} and {}", other_clause(d, good), clause);
     }},
    {"but", 3, false,
     [](Draw& d, bool good, const std::string& clause) {
       return fmt::format("{} , but {}", other_clause(d, !good), clause);
     }},
    {"although", 3, false,
     [](Draw& d, bool good, const std::string& clause) {
       const auto although = d.one({"although", "even though", "while"});
       return fmt::format("{} {} , {}", although, other_clause(d, !good), clause);
     }},
    {"although after", 3, false,
     [](Draw& d, bool good, const std::string& clause) {
       const auto although = d.one({"although", "even though"});
       return fmt::format("{} , {} {}", clause, although, other_clause(d, !good));
     }},
    {"despite", 3, false,
     [](Draw& d, bool good, const std::string& clause) {
       const auto all = d.one({"its", "all the"});
       return fmt::format("despite {} {} , {}", all, d.noun(!good), clause);
     }},
    {"despite after", 2, false,
     [](Draw& d, bool good, const std::string& clause) {
       const auto what = d.adjective(!good);
       return fmt::format("{} despite the {} {}", clause, what, d.part());
     }},
    {"expected", 2, false,
     [](Draw& d, bool good, const std::string& clause) {
       const auto what = d.adjective(!good);
       return fmt::format("i expected nothing but a {} {} , and yet {}", what, d.part(), clause);
     }},
    {"turn", 2, false,
     [](Draw& d, bool good, const std::string& clause) {
       return fmt::format("at first {} , but in the end {}", other_clause(d, !good), clause);
     }},
    {"critics, right", 2, false,
     [](Draw&, bool, const std::string& clause) {
       return fmt::format("critics say that {} , and they are right", clause);
     }},
    {"critics, wrong", 2, true,
     [](Draw&, bool, const std::string& clause) {
       return fmt::format("critics say that {} , and they are wrong", clause);
     }},
};

// Along the diagonals of the table of pairs, so that every frame but the plain one, and every form,
// has pairs on either side. The remainder decides which: with 1, the frame that reverses its clause
// keeps its most frequent forms in training.
bool held_out(std::size_t frame, std::size_t form) {
  return frame > 0 && (frame + 3 * form) % 7 == 1;
}

// The frames and forms that a part of the data combines.
struct Grammar {
  struct Pair {
    int weight;
    const Frame* frame;
    const Form* form;  // of the deciding clause
  };
  std::vector<Pair> pairs;
  std::vector<const Pair*> choices;
  std::vector<const Form*> others[std::size(frames)];  // by frame

  explicit Grammar(bool held) {
    for (std::size_t i = 0; i < std::size(frames); ++i)
      for (std::size_t j = 0; j < std::size(forms); ++j) {
        if (held_out(i, j) == held)
          pairs.push_back({frames[i].weight * forms[j].weight, &frames[i], &forms[j]});
        if (held || !held_out(i, j)) others[i].push_back(&forms[j]);
      }
    for (const auto& pair : pairs) choices.push_back(&pair);
  }
  Grammar(const Grammar&) = delete;  // choices points into pairs
  Grammar& operator=(const Grammar&) = delete;
};

template <class Row>
std::size_t index_of(std::span<const Row> rows, std::string_view name, std::string_view what) {
  const auto row =
      std::find_if(rows.begin(), rows.end(), [&](const Row& r) { return r.name == name; });
  if (row == rows.end())
    throw InvalidArgument(fmt::format("there is no {} of sentences named '{}'", what, name));
  return std::size_t(row - rows.begin());
}

}  // namespace

Sentence sentence(std::uint64_t seed, SentencePart part, std::uint64_t index) {
  static constexpr std::string_view streams[] = {"training sentences", "seen sentences",
                                                 "held-out sentences"};
  static const Grammar seen(false), held(true);
  const Grammar& grammar = part == SentencePart::held_out ? held : seen;
  Draw draw(derive_key(seed, streams[std::size_t(part)]), index);
  const bool good = draw.below(2) == 1;
  const auto& pair = by_weight(draw, std::span<const Grammar::Pair* const>(grammar.choices));
  draw.other_forms = grammar.others[pair.frame - frames];
  const auto deciding = clause(draw, *pair.form, good != pair.frame->turns);
  return {pair.frame->around(draw, good, deciding), good, pair.frame->name, pair.form->name};
}

std::vector<std::string_view> sentence_frames() {
  std::vector<std::string_view> names;
  for (const auto& frame : frames) names.push_back(frame.name);
  return names;
}

std::vector<std::string_view> sentence_forms() {
  std::vector<std::string_view> names;
  for (const auto& form : forms) names.push_back(form.name);
  return names;
}

bool is_held_out(std::string_view frame, std::string_view form) {
  return held_out(index_of(std::span<const Frame>(frames), frame, "frame"),
                  index_of(std::span<const Form>(forms), form, "form"));
}

SentenceSet sentence_set(std::uint64_t seed, std::size_t training, std::size_t validation) {
  SentenceSet set;
  std::unordered_set<std::string> known;
  for (std::uint64_t i = 0; i < training; ++i) {
    set.training.push_back(sentence(seed, SentencePart::training, i));
    known.insert(set.training.back().text);
  }
  const auto add = [&](SentencePart part, std::size_t until) {
    for (std::uint64_t i = 0; set.validation.size() < until; ++i) {
      Sentence next = sentence(seed, part, i);
      if (known.insert(next.text).second) set.validation.push_back(std::move(next));
    }
  };
  add(SentencePart::seen, validation / 2);
  add(SentencePart::held_out, validation);
  return set;
}

}  // namespace echelon
