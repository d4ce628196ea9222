// kvc::pointwise_depthwise: a convolution of single elements, and planes of its result convolved.
//
// Some channels are made in memory that stays in a cache, and convolved there, before the next
// ones: what lies between the two is never whole in memory.
#include <algorithm>

#include "convolutions.h"
#include "family_contracts.h"
#include "pool.h"
#include "types.h"

namespace kvc {
namespace {

constexpr int64_t kElementsTogether = 262144;  // of planes between
constexpr int64_t kLeastChannels = 16;         // as many as registers have lanes
constexpr int kBetweenSlot = 2;                // of workspaces

struct Pair {
  Convolution first, second;
  Tensor between;  // [1, channels of a block, ...], whose memory each thread has

  int64_t plane() const { return between.strides[1]; }
};

// The tensor between the two: the input's planes, with as many channels as weights.
Tensor tensor_between(const Tensor& x, int64_t channels) {
  Tensor between = x;
  between.dims[0] = 1;
  between.dims[1] = channels;
  for (int64_t axis = x.rank - 1, stride = 1; axis >= 0; --axis) {
    between.strides[axis] = stride;
    stride *= between.dims[axis];
  }
  return between;
}

Tensor moved(Tensor tensor, int64_t elements) {
  tensor.data = tensor.as<char>() + elements * itemsize(tensor.dtype);
  return tensor;
}

// Channels `first` to `first + count` of an image.
bool make_channels(const Pair& pair, int64_t image, int64_t first, int64_t count,
                   const Context& context) {
  void* memory = context.workspace(count * pair.plane() * sizeof(float), kBetweenSlot);
  if (memory == nullptr) return false;
  Tensor between = pair.between;
  between.data = memory;
  between.dims[1] = count;
  Convolution one = pair.first, other = pair.second;
  one.x = moved(one.x, image * one.x.strides[0]);
  one.x.dims[0] = 1;
  one.w = moved(one.w, first * one.inputs());
  one.out = between;
  other.x = between;
  other.w = moved(other.w, first * other.w.count() / other.w.dims[0]);
  other.out = moved(other.out, (image * other.out.dims[1] + first) * other.plane());
  other.out.dims[0] = 1;
  other.out.dims[1] = count;
  other.settings.groups = count;
  if (one.bias != nullptr) one.bias += first;
  if (one.scale != nullptr) one.scale += first;
  if (other.bias != nullptr) other.bias += first;
  return convolve(one, context) && convolve(other, context);
}

bool convolve_pair(const Pair& pair, const Context& context) {
  const int64_t channels = pair.first.w.dims[0], images = pair.second.out.dims[0];
  const int64_t fitting = kElementsTogether / std::max<int64_t>(1, pair.plane());
  const int64_t together = std::max(kLeastChannels, fitting / kLeastChannels * kLeastChannels);
  const int64_t blocks = (channels + together - 1) / together;
  parallel(images * blocks, 1, context.threads, [&](int64_t begin, int64_t end, int) {
    Failure unseen{};  // what a thread lacks is noted beside it
    const Context own{1, &unseen, context.lacking, false};
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = i % blocks * together;
      if (!make_channels(pair, i / blocks, first, std::min(together, channels - first), own)) return;
    }
  });
  return context.complete();
}

bool pointwise_depthwise(const Step& step, const Context& context) {
  const auto ending_of = [&](int64_t activation, int place) {
    return Ending{static_cast<Activation>(activation), static_cast<float>(step.numbers[place]),
                  static_cast<float>(step.numbers[place + 1])};
  };
  Settings settings{};
  const int64_t* read = read_list(step.integers + 1, settings.stride);
  read = read_list(read, settings.padding);
  read = read_list(read, settings.dilation);
  const Settings single{{1, 1, 1}, {0, 0, 0}, {1, 1, 1}, 1};
  const Tensor* planes;
  Convolution first = read_operands(step, false, &planes);
  first.ending = ending_of(step.integers[0], 0);
  first.settings = single;
  const Pair pair{first,
                  {first.out, first.out, planes[0], planes[1].as<const float>(), nullptr,
                   ending_of(*read, 2), false, settings},
                  tensor_between(first.x, first.w.dims[0])};
  return first.out.count() == 0 || convolve_pair(pair, context);
}

}  // namespace

const Entry kConvolutionPairs[] = {
    {"kvc::pointwise_depthwise", pointwise_depthwise, convolved_twice},
    {"kvc::pointwise_depthwise_w8", pointwise_depthwise, convolved_twice_with_int8},
    {nullptr, nullptr, nullptr},
};

}  // namespace kvc
