#include "options.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char kUsage[] =
    "usage: kvc-run [OPTIONS] MODEL.kvc [PROMPT]\n"
    "\n"
    "Continues PROMPT with the model in MODEL.kvc; the text goes to stdout as it is made. A PROMPT "
    "of\n"
    "- is read from stdin. Ctrl-C ends an answer. Settings that are not given are the bundle's.\n"
    "\n"
    "  --chat                   each line of stdin is a message; the session stays\n"
    "  --system TEXT            the system message of a chat\n"
    "  --turns FILE             the texts of a chat's turns, as `kvc chat MODEL.kvc --turns FILE` "
    "writes\n"
    "                           them  [default: MODEL.kvc.turns.json]\n"
    "  --ids                    PROMPT is token ids, such as \"1 15 8\", and so is the answer\n"
    "  --max-tokens N           the most tokens of an answer\n"
    "  --min-tokens N           no stop token comes before as many\n"
    "  --temperature X          0 takes the likeliest token\n"
    "  --top-k N, --top-p X, --min-p X, --typical-p X\n"
    "                           sample among likely tokens\n"
    "  --repetition-penalty X, --frequency-penalty X, --presence-penalty X\n"
    "                           make tokens less likely that occurred before\n"
    "  --no-repeat-ngram-size N no sequence of as many tokens occurs twice\n"
    "  --seed N                 the same seed gives the same text\n"
    "  --stop TEXT              end before this text; repeatable\n"
    "  --capacity N             how many tokens the cache holds\n"
    "  --threads N              how many threads compute\n"
    "  --save FILE              write the session to FILE at the end\n"
    "  --restore FILE           go on with the session in FILE\n"
    "  --verbose                times and speeds, to stderr\n"
    "  --help                   this text\n";

static const struct {
  const char* option;
  const char* setting;
  int is_whole;
} kSettings[] = {
    {"--max-tokens", "max_tokens", 1},
    {"--min-tokens", "min_new_tokens", 1},
    {"--temperature", "temperature", 0},
    {"--top-k", "top_k", 1},
    {"--top-p", "top_p", 0},
    {"--min-p", "min_p", 0},
    {"--typical-p", "typical_p", 0},
    {"--repetition-penalty", "repetition_penalty", 0},
    {"--frequency-penalty", "frequency_penalty", 0},
    {"--presence-penalty", "presence_penalty", 0},
    {"--no-repeat-ngram-size", "no_repeat_ngram_size", 1},
    {"--seed", "seed", 1},
};

static int mistake(const char* option, const char* problem) {
  fprintf(stderr, "kvc-run: %s: %s; kvc-run --help lists the options\n", option, problem);
  return 2;
}

static int add_text(char* whole, const char* text) {
  const size_t used = strlen(whole), more = strlen(text);
  if (used + more + 1 > MOST_SETTINGS) return 0;
  memcpy(whole + used, text, more + 1);
  return 1;
}

int add_setting(options* found, const char* name, const char* json) {
  char* all = found->settings;
  return (all[0] == '\0' || add_text(all, ", ")) && add_text(all, "\"") && add_text(all, name) &&
         add_text(all, "\": ") && add_text(all, json);
}

/* Adds a text to a JSON list. */
static int add_to_list(char* list, const char* text) {
  if (list[0] == '\0' ? !add_text(list, "[")
                      : (list[strlen(list) - 1] = '\0', !add_text(list, ", ")))
    return 0;
  if (!add_text(list, "\"")) return 0;
  for (; *text != '\0'; ++text) {
    const unsigned char c = (unsigned char)*text;
    char escaped[8];
    if (c < 0x20) {
      snprintf(escaped, sizeof escaped, "\\u%04x", c);
    } else {
      snprintf(escaped, sizeof escaped, c == '"' || c == '\\' ? "\\%c" : "%c", c);
    }
    if (!add_text(list, escaped)) return 0;
  }
  return add_text(list, "\"]");
}

/* Writes a number as JSON has it; 0 if the text is no number. */
static int as_json(const char* text, int is_whole, char* json, size_t room) {
  char* end;
  if (is_whole) {
    if (text[0] == '\0' || strspn(text, "0123456789") != strlen(text) || strlen(text) > 20)
      return 0;
    while (text[0] == '0' && text[1] != '\0') ++text;
    snprintf(json, room, "%s", text);
    return 1;
  }
  const double number = strtod(text, &end);
  if (end == text || *end != '\0' || !isfinite(number)) return 0;
  snprintf(json, room, "%.17g", number);
  return 1;
}

static int set_setting(size_t which, const char* value, options* found) {
  char json[40];
  if (!as_json(value, kSettings[which].is_whole, json, sizeof json)) {
    return mistake(kSettings[which].option, kSettings[which].is_whole
                                                ? "expected a whole number, 0 or more"
                                                : "expected a number");
  }
  return add_setting(found, kSettings[which].setting, json) ? -1
                                                            : mistake(value, "too many settings");
}

/* Sets an option that has a value. */
static int set_value(const char* option, const char* value, options* found) {
  for (size_t i = 0; i < sizeof kSettings / sizeof kSettings[0]; ++i) {
    if (strcmp(option, kSettings[i].option) == 0) return set_setting(i, value, found);
  }
  const struct {
    const char* option;
    const char** text;
  } texts[] = {{"--system", &found->system},
               {"--turns", &found->turns},
               {"--save", &found->save},
               {"--restore", &found->restore}};
  for (size_t i = 0; i < sizeof texts / sizeof texts[0]; ++i) {
    if (strcmp(option, texts[i].option) != 0) continue;
    *texts[i].text = value;
    return -1;
  }
  if (strcmp(option, "--stop") == 0) {
    if (value[0] == '\0') return mistake(option, "expected a text that is not empty");
    return add_to_list(found->stop_strings, value) ? -1 : mistake(option, "too many texts");
  }
  char json[40];
  const int capacity = strcmp(option, "--capacity") == 0;
  if (!capacity && strcmp(option, "--threads") != 0) return mistake(option, "no such option");
  if (!as_json(value, 1, json, sizeof json) || strlen(json) > (capacity ? 18 : 9) ||
      json[0] == '0') {
    return mistake(option, "expected a whole number, 1 or more");
  }
  if (capacity) {
    found->capacity = atoll(json);
  } else {
    found->threads = atoi(json);
  }
  return -1;
}

static int set_flag(const char* option, options* found) {
  const struct {
    const char* option;
    int* flag;
  } flags[] = {{"--chat", &found->chat}, {"--ids", &found->ids}, {"--verbose", &found->verbose}};
  for (size_t i = 0; i < sizeof flags / sizeof flags[0]; ++i) {
    if (strcmp(option, flags[i].option) != 0) continue;
    *flags[i].flag = 1;
    return 1;
  }
  return 0;
}

static int check(const options* found) {
  if (found->bundle == NULL) return mistake("MODEL.kvc", "it is missing");
  if (found->chat && found->prompt != NULL)
    return mistake("--chat", "messages come from stdin, not as PROMPT");
  if (found->chat && found->ids) return mistake("--chat", "it goes without --ids");
  if (!found->chat && found->prompt == NULL) return mistake("PROMPT", "it is missing");
  if (!found->chat && found->system != NULL) return mistake("--system", "it goes with --chat");
  if (found->ids && found->stop_strings[0] != '\0')
    return mistake("--stop", "it goes without --ids");
  if (found->capacity > 0 && found->restore != NULL)
    return mistake("--capacity", "it is that of the session in FILE");
  return -1;
}

int read_options(int count, char** arguments, options* found) {
  memset(found, 0, sizeof *found);
  int only_words = 0;
  for (int i = 1; i < count; ++i) {
    const char* argument = arguments[i];
    if (only_words || argument[0] != '-' || argument[1] == '\0') {
      if (found->bundle == NULL) {
        found->bundle = argument;
      } else if (found->prompt == NULL) {
        found->prompt = argument;
      } else {
        return mistake(argument, "one PROMPT is expected; put it in quotes");
      }
    } else if (strcmp(argument, "--") == 0) {
      only_words = 1;
    } else if (strcmp(argument, "--help") == 0) {
      fputs(kUsage, stdout);
      return 0;
    } else if (!set_flag(argument, found)) {
      if (i + 1 == count)
        return mistake(argument, "a value is missing, or there is no such option");
      const int code = set_value(argument, arguments[++i], found);
      if (code >= 0) return code;
    }
  }
  return check(found);
}
