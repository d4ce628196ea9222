// What `kvc_generator` is.
#pragma once

#include <memory>
#include <string>

#include "generate.h"

struct kvc_generator {
  kvc_generator(std::unique_ptr<kvc::lib::generation::Model> made,
                const kvc::lib::generation::Settings& settings);

  std::unique_ptr<kvc::lib::generation::Model> model;
  std::string ignored, stop_strings;
  kvc::lib::generation::Generator generator;
};
