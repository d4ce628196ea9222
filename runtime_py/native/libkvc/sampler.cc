#include "sampler.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "errors.h"

namespace kvc::lib::generation {
namespace {

constexpr int64_t kFew = 1024;  // up to this number, tokens are sorted at once

// The sum of elements in numpy's order: eight sums side by side, of at most 128 elements.
double pairwise_sum(const double* x, int64_t count) {
  if (count < 8) {
    double sum = -0.0;
    for (int64_t i = 0; i < count; ++i) sum += x[i];
    return sum;
  }
  if (count > 128) {
    const int64_t half = count / 2 - count / 2 % 8;
    return pairwise_sum(x, half) + pairwise_sum(x + half, count - half);
  }
  double sums[8];
  std::copy(x, x + 8, sums);
  int64_t i = 8;
  for (; i < count - count % 8; i += 8) {
    for (int j = 0; j < 8; ++j) sums[j] += x[i + j];
  }
  double sum =
      ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
  for (; i < count; ++i) sum += x[i];
  return sum;
}

// Of logits: the greatest, or NaN if one is among them, and its first place.
float greatest(const float* logits, int64_t count, int64_t* place) {
  *place = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (std::isnan(logits[i])) {
      *place = i;
      return logits[i];
    }
    if (logits[i] > logits[*place]) *place = i;
  }
  return logits[*place];
}

const char* problem_of(float best) {
  if (std::isnan(best)) return "NaN is among them";
  if (std::isinf(best) && best < 0) return "all of them are minus infinity";
  return nullptr;
}

}  // namespace

void Sampler::begin(const Settings& settings, const Tokens& before, int64_t held,
                    int64_t vocabulary) {
  settings_ = settings;
  vocabulary_ = vocabulary;
  const size_t size = static_cast<size_t>(vocabulary);
  processors_.begin(settings, before, held, vocabulary);
  if (!processors_.idle()) changed_.resize(size);
  if (settings.temperature != 0) {
    random_ = Random(settings.has_seed ? settings.seed : any_seed());
    for (auto* doubles : {&scores_, &chances_, &gathered_}) doubles->resize(size);
    for (auto* integers : {&ids_, &places_}) integers->resize(size);
    heap_.resize(size);
    marks_.resize(size);
  }
}

int64_t Sampler::choose(const float* logits) {
  const float* changed = logits;
  if (!processors_.idle()) {
    std::copy(logits, logits + vocabulary_, changed_.begin());
    processors_.apply(changed_.data());
    changed = changed_.data();
  }
  int64_t token;
  const char* reason = nullptr;
  const bool greedy = settings_.temperature == 0;
  if (greedy ? likeliest(changed, &token, &reason) : sampled(changed, &token, &reason)) {
    processors_.append(token);
    return token;
  }
  int64_t place;
  if (std::isfinite(greatest(logits, vocabulary_, &place))) {
    reason = "settings leave no token to choose";
  }
  fail(KVC_UNUSABLE_LOGITS, "the model's logits cannot be used: %s", reason);
}

bool Sampler::likeliest(const float* logits, int64_t* token, const char** reason) const {
  *reason = problem_of(greatest(logits, vocabulary_, token));
  return *reason == nullptr;
}

bool Sampler::sampled(const float* logits, int64_t* token, const char** reason) {
  int64_t place;
  const float best = greatest(logits, vocabulary_, &place);
  *reason = std::isinf(best) && best > 0 ? "infinity is among them" : problem_of(best);
  if (*reason != nullptr) return false;
  keep_top_k(logits);
  for (int64_t i = 0; i < kept_; ++i) {
    scores_[i] = (static_cast<double>(logits[ids_[i]]) - best) / settings_.temperature;
  }
  if (settings_.top_p < 1) keep_top_p();
  if (settings_.min_p > 0) keep_likely();
  if (settings_.typical_p < 1) keep_typical();
  double total = 0;
  for (int64_t i = 0; i < kept_; ++i) scores_[i] = total += std::exp(scores_[i]);
  const auto begin = scores_.begin();
  const double place_of_token = random_.next() * total;  // below the total, after any rounding
  *token = ids_[std::upper_bound(begin, begin + kept_, place_of_token) - begin];
  return true;
}

// Keeps the greatest logits; if the last ones are equal, all of them.
void Sampler::keep_top_k(const float* logits) {
  float floor = std::numeric_limits<float>::lowest();
  if (settings_.top_k > 0 && settings_.top_k < vocabulary_) {
    // A heap with the least on top, of the greatest so far.
    const auto last = heap_.begin() + settings_.top_k;
    std::copy(logits, logits + settings_.top_k, heap_.begin());
    std::make_heap(heap_.begin(), last, std::greater<float>());
    for (int64_t i = settings_.top_k; i < vocabulary_; ++i) {
      if (logits[i] <= heap_[0]) continue;
      std::pop_heap(heap_.begin(), last, std::greater<float>());
      *(last - 1) = logits[i];
      std::push_heap(heap_.begin(), last, std::greater<float>());
    }
    floor = std::max(floor, heap_[0]);
  }
  kept_ = 0;
  for (int64_t i = 0; i < vocabulary_; ++i) {
    if (logits[i] >= floor) ids_[kept_++] = i;
  }
}

// Keeps the likeliest tokens, the fewest whose total probability is at least `top_p`.
//
// Tokens with a probability below (1 - top_p) / n are left out first: all such together have less
// than the probability that may be left out. In most cases few tokens remain to be sorted.
void Sampler::keep_top_p() {
  find_chances();
  const double top_p = settings_.top_p, least = (1 - top_p) / static_cast<double>(kept_);
  std::fill(marks_.begin(), marks_.begin() + kept_, 0);
  undecided_ = 0;
  for (int64_t i = 0; i < kept_; ++i) {
    if (chances_[i] > least) places_[undecided_++] = i;
  }
  if (undecided_ == 0) {  // top_p is 0 or very small
    marks_[std::max_element(scores_.begin(), scores_.begin() + kept_) - scores_.begin()] = 1;
  } else {
    const double share = narrow(top_p);
    sort_places(chances_.data(), true);
    double reached = 0;
    for (int64_t i = 0; i < undecided_; ++i) {
      marks_[places_[i]] = 1;
      reached += chances_[places_[i]];
      if (reached >= share) break;
    }
  }
  keep_marked();
}

// Decides, by halves, which tokens are certainly among the likeliest, until few are undecided.
// Tokens of equal probability stay together, so that a later stable sort orders them by id.
// Returns the total probability that the undecided ones have to reach.
double Sampler::narrow(double share) {
  while (undecided_ > kFew) {
    int64_t upper;
    const double mean_of = above_mean(&upper);
    if (upper == 0 || upper == undecided_) break;  // all are equal
    int64_t count = 0;
    for (int64_t i = 0; i < undecided_; ++i) {
      if (chances_[places_[i]] > mean_of) gathered_[count++] = chances_[places_[i]];
    }
    const double reached = pairwise_sum(gathered_.data(), count);
    const bool kept = reached < share;
    count = 0;
    for (int64_t i = 0; i < undecided_; ++i) {
      const bool above = chances_[places_[i]] > mean_of;
      if (kept && above) marks_[places_[i]] = 1;
      if (kept != above) places_[count++] = places_[i];
    }
    undecided_ = count;
    if (kept) share -= reached;
  }
  return share;
}

// Returns the mean of the undecided tokens' probabilities, and how many are above it.
double Sampler::above_mean(int64_t* upper) {
  for (int64_t i = 0; i < undecided_; ++i) gathered_[i] = chances_[places_[i]];
  const double mean = pairwise_sum(gathered_.data(), undecided_) / static_cast<double>(undecided_);
  *upper = 0;
  for (int64_t i = 0; i < undecided_; ++i) *upper += gathered_[i] > mean;
  return mean;
}

void Sampler::keep_likely() {
  const double least = std::log(settings_.min_p);
  for (int64_t i = 0; i < kept_; ++i) marks_[i] = scores_[i] >= least;
  keep_marked();
}

// Keeps typical tokens (Meister et al. 2023, Locally Typical Sampling).
void Sampler::keep_typical() {
  find_chances();
  for (int64_t i = 0; i < kept_; ++i) {
    const double information = -std::log(chances_[i]), part = information * chances_[i];
    gathered_[i] = std::isnan(part) ? 0 : part;
  }
  const double entropy = pairwise_sum(gathered_.data(), kept_);
  for (int64_t i = 0; i < kept_; ++i) {
    gathered_[i] = std::abs(-std::log(chances_[i]) - entropy);
    places_[i] = i;
  }
  undecided_ = kept_;
  sort_places(gathered_.data(), false);
  double reached = 0;
  int64_t last = 0;
  for (int64_t i = 0; i < kept_; ++i)
    last += (reached += chances_[places_[i]]) < settings_.typical_p;
  const double most = gathered_[places_[std::min(last, kept_ - 1)]];
  for (int64_t i = 0; i < kept_; ++i) marks_[i] = gathered_[i] <= most;
  keep_marked();
}

void Sampler::keep_marked() {
  int64_t count = 0;
  for (int64_t i = 0; i < kept_; ++i) {
    if (!marks_[i]) continue;
    ids_[count] = ids_[i];
    scores_[count++] = scores_[i];
  }
  kept_ = count;
}

void Sampler::find_chances() {
  for (int64_t i = 0; i < kept_; ++i) chances_[i] = std::exp(scores_[i]);
  const double total = pairwise_sum(chances_.data(), kept_);
  for (int64_t i = 0; i < kept_; ++i) chances_[i] /= total;
}

// Sorts the undecided places by keys, equal ones by place: as a stable sort, without its memory.
void Sampler::sort_places(const double* keys, bool falling) {
  std::sort(places_.begin(), places_.begin() + undecided_, [=](int64_t a, int64_t b) {
    if (keys[a] != keys[b]) return falling ? keys[a] > keys[b] : keys[a] < keys[b];
    return a < b;
  });
}

}  // namespace kvc::lib::generation
