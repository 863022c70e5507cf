#include "echelon/lab/sentences.h"

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "echelon/lab/bag_of_words.h"

namespace echelon {
namespace {

constexpr std::size_t many = 20000;

std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> words;
  for (std::size_t at = 0, end; at < text.size(); at = end + 1) {
    end = std::min(text.find(' ', at), text.size());
    words.push_back(text.substr(at, end - at));
  }
  return words;
}

// Reads a sentence without knowing how it was made. It learns which words praise from plain
// sentences ("the plot is witty", "the plot has real warmth", "the plot bores").
class Reader {
 public:
  explicit Reader(const std::vector<Sentence>& sentences) {
    for (const auto& one : sentences) {
      if (one.frame != "plain") continue;
      const auto words = words_of(one.text);
      const bool simple =
          one.form == "verb" || one.form == "has" || (one.form == "is" && words.size() == 4);
      if (simple) praises_[words.back()] = one.label == 1;
    }
  }

  bool label_of(const std::string& text) const {
    const auto ends = [&](const char* with) { return text.ends_with(with); };
    if (text.starts_with("critics say that ")) {
      const auto claim = text.substr(17, text.rfind(" , and they are") - 17);
      return clause(claim) == ends("right");
    }
    for (const char* mark : {" , but ", " , and yet "})
      if (const auto at = text.rfind(mark); at != text.npos)
        return main_clause(text.substr(at + std::string(mark).size()));
    for (const char* mark : {" , although ", " , even though "})
      if (const auto at = text.find(mark); at != text.npos) return main_clause(text.substr(0, at));
    if (const auto at = text.find(" despite the "); at != text.npos)
      return main_clause(text.substr(0, at));
    const auto comma = text.find(" , ");
    return main_clause(comma == text.npos ? text : text.substr(comma + 3));
  }

 private:
  // The last of clauses that "and" joins. All say the same.
  bool main_clause(std::string text) const {
    if (text.starts_with("in the end ")) text = text.substr(11);
    const auto at = text.rfind(" and the ");
    return clause(at == text.npos ? text : text.substr(at + 5));
  }

  bool clause(const std::string& text) const {
    const auto has = [&](const char* phrase) {
      return (" " + text + " ").find(" " + std::string(phrase) + " ") != std::string::npos;
    };
    const auto words = words_of(text);
    std::vector<bool> sentiments;
    for (const auto& word : words)
      if (const auto known = praises_.find(word); known != praises_.end())
        sentiments.push_back(known->second);
    EXPECT_FALSE(sentiments.empty()) << text;
    if (sentiments.empty()) return false;
    for (const char* contrast : {"than", "of"})
      if ((has("instead") || has("rather") || has("more")) && has(contrast))
        return sentiments.front();
    if (has("not only") || (has("but") && !has("anything but"))) return sentiments.back();
    if (has("not without")) return sentiments.back();
    for (const char* negation :
         {"not", "never", "hardly", "by no means", "far from", "anything but", "lacks", "avoids",
          "free of", "short on", "fails", "refuses", "hard to call"})
      if (has(negation)) return !sentiments.back();
    return sentiments.back();
  }

  std::map<std::string, bool> praises_;
};

TEST(Sentences, SayWhatTheirLabelSays) {
  const auto set = sentence_set(1, many, 4000);
  const Reader reader(set.training);
  for (const auto* part : {&set.training, &set.validation})
    for (const auto& one : *part)
      ASSERT_EQ(reader.label_of(one.text), one.label == 1)
          << one.text << " (" << one.frame << " / " << one.form << ")";
}

TEST(Sentences, AreAFunctionOfSeedPartAndIndex) {
  const auto some = sentence_set(7, 50, 20), more = sentence_set(7, 100, 20);
  for (std::size_t i = 0; i < some.training.size(); ++i) {
    EXPECT_EQ(some.training[i].text, more.training[i].text);
    EXPECT_EQ(some.training[i].text, sentence(7, SentencePart::training, i).text);
  }
  int same = 0;
  for (std::uint64_t i = 0; i < 100; ++i)
    same +=
        sentence(7, SentencePart::training, i).text == sentence(8, SentencePart::training, i).text;
  EXPECT_LT(same, 10);
}

TEST(Sentences, HoldPairsOfEveryFrameAndFormOutOfTraining) {
  std::map<std::string_view, std::set<bool>> frames, forms;
  for (const auto frame : sentence_frames())
    for (const auto form : sentence_forms()) {
      frames[frame].insert(is_held_out(frame, form));
      forms[form].insert(is_held_out(frame, form));
    }
  for (const auto& [form, kinds] : forms) EXPECT_EQ(kinds.size(), 2u) << form;
  for (const auto& [frame, kinds] : frames)
    EXPECT_EQ(kinds.size(), frame == "plain" ? 1u : 2u) << frame;
  for (std::uint64_t i = 0; i < many; ++i)
    for (const auto part : {SentencePart::training, SentencePart::seen, SentencePart::held_out}) {
      const auto one = sentence(1, part, i);
      ASSERT_EQ(is_held_out(one.frame, one.form), part == SentencePart::held_out) << one.text;
    }
}

// What a clause of each form looks like, whatever the generator says about it.
const std::vector<std::pair<std::string, std::regex>>& looks() {
  const std::string end = "( ,| and | despite |$)";
  static const std::vector<std::pair<std::string, std::regex>> all = [&] {
    std::vector<std::pair<std::string, std::regex>> made;
    for (const auto& [form, look] : std::vector<std::pair<std::string, std::string>>{
             {"is", " is \\w+" + end},
             {"is strongly", " is (very|really|truly|remarkably|deeply|utterly) \\w+" + end},
             {"negation", " is (not|never|hardly|by no means|far from|anything but) \\w+" + end},
             {"verb", "the \\w+ \\w+s" + end},
             {"never", "the \\w+ never \\w+s" + end},
             {"has", " has (plenty of|real|so much) "},
             {"lacks", " (lacks|avoids|is free of|is short on) "},
             {"double negation", " is not without "},
             {"fails", " (fails|refuses) to be "},
             {"comparison", " is more \\w+ than "},
             {"contrast", " (instead of|rather than) "},
             {"not only", " is not only "},
             {"intensity", " (somewhat|slightly|a little|mildly) "},
             {"hard to call", " (could hardly be called|is hard to call) "}})
      made.emplace_back(form, look);
    return made;
  }();
  return all;
}

TEST(Sentences, HaveNoClauseOfAHeldOutFormInTraining) {
  ASSERT_EQ(looks().size(), sentence_forms().size());
  std::map<std::string, int> found;
  for (std::uint64_t i = 0; i < many; ++i)
    for (const auto part : {SentencePart::training, SentencePart::held_out}) {
      const auto one = sentence(1, part, i);
      for (const auto& [form, look] : looks()) {
        const bool has = std::regex_search(one.text, look);
        EXPECT_TRUE(has || one.form != form) << form << " in " << one.text;
        if (part == SentencePart::held_out || !has) continue;
        ++found[form];
        ASSERT_FALSE(is_held_out(one.frame, form))
            << one.text << " has '" << form << "' in the frame '" << one.frame << "'";
      }
      if (part == SentencePart::held_out && i > many / 20) break;  // enough to see the looks
    }
  EXPECT_EQ(found.size(), looks().size());
}

TEST(Sentences, ValidateWithHalfHeldOutAndNoneOfTheTrainingSet) {
  const auto set = sentence_set(1, many, 2001);
  ASSERT_EQ(set.training.size(), many);
  ASSERT_EQ(set.validation.size(), 2001u);
  std::set<std::string> seen;
  for (const auto& one : set.training) seen.insert(one.text);
  std::size_t held = 0, good = 0;
  for (const auto& one : set.validation) {
    EXPECT_TRUE(seen.insert(one.text).second) << one.text;
    held += is_held_out(one.frame, one.form);
    good += std::size_t(one.label);
  }
  EXPECT_EQ(held, 1001u);
  EXPECT_NEAR(double(good), 1000, 120);
}

TEST(Sentences, DoNotGiveTheirLabelAwayByTheirWords) {
  const auto set = sentence_set(1, many, 2000);
  std::vector<LabelledText> training, validation;
  for (const auto& one : set.training) training.push_back({one.text, one.label});
  for (const auto& one : set.validation) validation.push_back({one.text, one.label});
  const double accuracy = bag_of_words(training, validation).accuracy();
  EXPECT_GT(accuracy, 0.5);
  EXPECT_LT(accuracy, 0.75);
}

}  // namespace
}  // namespace echelon
