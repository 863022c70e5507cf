// Sentences about films, made by a grammar, each with its sentiment: the data of the lab where no
// real reviews are at hand. They are English, but nobody wrote or rated them.
//
// A sentence is a frame around clauses; the label is what the speaker ends up saying:
//
//   plain            the plot is deeply moving                                          positive
//   but              the cast delights, but the plot never surprises                    negative
//   although         although the music is bland, the finale has real warmth            positive
//   critics, wrong   critics say that the villain is far from dull, and they are wrong  negative
//
// A clause praises or blames one part of the film, in one of several forms: "is witty", "is
// anything but dull" (negation), "is slightly forced but deeply touching" (intensity), "is clever
// rather than clumsy" (contrast), "never bores", "is short on wit", "is not without charm". Many
// forms and frames mix words of both sentiments, or have words of the opposite one, so counting
// words does not tell the label.
//
// Of the pairs of a form and a frame other than the plain one, every seventh is held out
// (is_held_out): no clause of that form stands in that frame anywhere in the training set. A model
// that labels held-out sentences has learnt what frames and forms mean, not which pairs of them go
// with which label.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace echelon {

struct Sentence {
  std::string text;  // lower case, words and marks apart by blanks, as in SST-2
  int label = 0;     // 1: positive
  std::string_view frame, form;
};

enum class SentencePart {
  training,
  seen,      // validation: pairs of frame and form that the training set has
  held_out,  // validation: pairs that it does not have
};

// Sentence `index` of a part, a pure function of its arguments.
Sentence sentence(std::uint64_t seed, SentencePart part, std::uint64_t index);

std::vector<std::string_view> sentence_frames();
std::vector<std::string_view> sentence_forms();
bool is_held_out(std::string_view frame, std::string_view form);

struct SentenceSet {
  std::vector<Sentence> training;
  std::vector<Sentence> validation;  // half seen, half held out; none is in the training set
};
SentenceSet sentence_set(std::uint64_t seed, std::size_t training, std::size_t validation);

}  // namespace echelon
