/* kvc-run: text in, text out, with a bundle and libkvc alone. KVC_RUN.md tells how to use it.
 *
 * Exit codes: 0; 1 for a failure, which stderr tells; 2 for a mistake in the options; 130 if
 * Ctrl-C ended it. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../kvc_generate.h"
#include "../kvc_text.h"
#include "options.h"

typedef struct tokens {
  int64_t* items;
  int64_t count, room;
} tokens;

/* What is open. */
typedef struct state {
  options given;
  kvc_bundle* bundle;
  kvc_session* session;
  kvc_tokenizer* tokenizer; /* null where texts are token ids */
  kvc_spelling* spelling;
  kvc_turns* turns; /* of a chat */
  kvc_generator* generator;
  tokens held;    /* what the session holds, as far as this process knows */
  tokens pending; /* what is to run next */
  tokens answer;
  int begun; /* whether the session has a text */
  kvc_error error;
} state;

static volatile sig_atomic_t interrupted, answering;

static void on_interrupt(int number) {
  (void)number;
  if (!answering || interrupted) _Exit(130);
  interrupted = 1;
}

static double seconds_now(void) {
  struct timespec now;
  timespec_get(&now, TIME_UTC);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void* must_have(void* memory) {
  if (memory != NULL) return memory;
  fputs("kvc-run: out of memory\n", stderr);
  exit(1);
}

static void add_tokens(tokens* list, const int64_t* items, int64_t count) {
  if (list->count + count > list->room) {
    list->room = 2 * (list->count + count) + 64;
    list->items = must_have(realloc(list->items, (size_t)list->room * sizeof *list->items));
  }
  if (count > 0) memcpy(list->items + list->count, items, (size_t)count * sizeof *items);
  list->count += count;
}

static int failed(const state* all, const char* what) {
  fprintf(stderr, "kvc-run: %s%s%s\n", what, what[0] == '\0' ? "" : ": ", all->error.text);
  return 1;
}

/* Reads all of a file, with a zero at its end; null if it cannot be read. */
static char* read_all(FILE* file, size_t* nbytes) {
  size_t room = 1 << 16, used = 0;
  char* text = must_have(malloc(room));
  while (file != NULL) {
    const size_t got = fread(text + used, 1, room - used - 1, file);
    used += got;
    if (got == 0) break;
    if (used + 1 == room) text = must_have(realloc(text, room *= 2));
  }
  const int broken = file == NULL || ferror(file);
  text[used] = '\0';
  *nbytes = used;
  if (!broken) return text;
  free(text);
  return NULL;
}

/* Reads a line of stdin without its end; null at the end of stdin. */
static char* read_line(void) {
  size_t room = 256, used = 0;
  char* line = must_have(malloc(room));
  while (fgets(line + used, (int)(room - used), stdin) != NULL) {
    used += strlen(line + used);
    if (used > 0 && line[used - 1] == '\n') {
      line[used - 1] = '\0';
      return line;
    }
    if (used + 1 == room) line = must_have(realloc(line, room *= 2));
  }
  if (used > 0) return line;
  free(line);
  return NULL;
}

static int32_t on_token(void* context, int64_t token) {
  state* all = context;
  add_tokens(&all->answer, &token, 1);
  if (all->tokenizer == NULL) {
    printf(all->answer.count > 1 ? " %lld" : "%lld", (long long)token);
  } else {
    size_t nbytes;
    const char* text = kvc_spelling_push(all->spelling, token, &nbytes);
    fwrite(text, 1, nbytes, stdout);
  }
  fflush(stdout);
  return interrupted || (all->spelling != NULL && kvc_spelling_stopped(all->spelling));
}

static void tell_speed(const char* what, int64_t count, double seconds) {
  fprintf(stderr, "%s: %lld tokens, %.3f s, %.1f tokens/s\n", what, (long long)count, seconds,
          seconds > 0 ? (double)count / seconds : 0.0);
}

static void tell(const state* all, const kvc_answer* answer) {
  static const char* const ends[] = {"not at all", "a stop token", "the limit of tokens",
                                     "a full cache", "the caller"};
  if (answer->end == KVC_END_FULL)
    fputs("kvc-run: the answer ended since the cache is full\n", stderr);
  if (!all->given.verbose) return;
  tell_speed("prompt", answer->prompt_tokens, answer->prompt_seconds);
  tell_speed("answer", answer->steps, answer->step_seconds);
  fprintf(stderr, "ended by: %s\n",
          interrupted                     ? "Ctrl-C"
          : answer->end == KVC_END_CALLER ? "a stop string"
                                          : ends[answer->end]);
}

/* Runs the pending tokens, and makes an answer. */
static int answer_pending(state* all) {
  kvc_answer answer;
  const tokens prompt = all->pending;
  all->answer.count = 0;
  interrupted = 0;
  answering = 1;
  const kvc_code code = kvc_generate(all->generator, all->held.items, all->held.count, prompt.items,
                                     prompt.count, on_token, all, &answer, &all->error);
  answering = 0;
  if (all->spelling != NULL) {
    size_t nbytes;
    const char* text = kvc_spelling_finish(all->spelling, &nbytes);
    fwrite(text, 1, nbytes, stdout);
  }
  if (code == KVC_OK || all->answer.count > 0) fputs("\n", stdout);
  fflush(stdout);
  tell(all, &answer);
  /* What has run is the beginning of the prompt, the answer and a stop token. */
  const int64_t stopped = answer.end == KVC_END_STOP;
  int64_t ran = prompt.count + all->answer.count + stopped - answer.pending_count;
  const int64_t ran_answer = ran > prompt.count ? ran - prompt.count : 0;
  add_tokens(&all->held, prompt.items, ran - ran_answer);
  add_tokens(&all->held, all->answer.items, ran_answer);
  if (ran > 0) all->begun = 1;
  tokens rest = {NULL, 0, 0};
  /* The text of a chat's next turn begins with what ends an answer. */
  add_tokens(&rest, answer.pending, answer.pending_count - (all->given.chat ? stopped : 0));
  free(all->pending.items);
  all->pending = rest;
  return code == KVC_OK ? 0 : failed(all, "");
}

/* Adds the token ids of a text to the pending tokens. */
static int add_ids(state* all, const char* text) {
  while (*(text += strspn(text, " ,\t\r\n")) != '\0') {
    char* end;
    const int64_t token = strtoll(text, &end, 10);
    if (end == text || token < 0) {
      fprintf(stderr, "kvc-run: expected token ids, such as \"1 15 8\"%s, got %.40s\n",
              all->given.ids ? "" : ", since the bundle has no tokenizer", text);
      return 1;
    }
    add_tokens(&all->pending, &token, 1);
    text = end;
  }
  return 0;
}

static int add_text(state* all, const char* text, int special) {
  const int64_t* found;
  int64_t count;
  if (all->tokenizer == NULL) return add_ids(all, text);
  if (kvc_tokenizer_encode(all->tokenizer, text, strlen(text), special, &found, &count,
                           &all->error) != KVC_OK) {
    return failed(all, "");
  }
  add_tokens(&all->pending, found, count);
  return 0;
}

static int run_prompt(state* all) {
  size_t nbytes;
  const int from_stdin = strcmp(all->given.prompt, "-") == 0;
  char* read = from_stdin ? read_all(stdin, &nbytes) : NULL;
  if (from_stdin && read == NULL) return fputs("kvc-run: cannot read stdin\n", stderr), 1;
  if (read != NULL && nbytes > 0 && read[nbytes - 1] == '\n') read[nbytes - 1] = '\0';
  const int code = add_text(all, from_stdin ? read : all->given.prompt, !all->begun);
  free(read);
  return code != 0 ? code : answer_pending(all);
}

/* One line of a chat after the other. What fails is told; the exit code is that of the last. */
static int run_chat(state* all) {
  int code = 0;
  char* line;
  while (fputs("> ", stderr), (line = read_line()) != NULL) {
    const char* text;
    const int first = !all->begun;
    const int64_t before = all->pending.count;
    code = 1;
    if (kvc_turns_text(all->turns, first, first ? all->given.system : NULL, line, &text,
                       &all->error) != KVC_OK) {
      failed(all, "");
    } else if (add_text(all, text, 0) == 0) {
      const int64_t held = all->held.count;
      code = answer_pending(all);
      /* A turn of which nothing has run, as one without room, is forgotten. */
      if (code != 0 && all->held.count == held) all->pending.count = before;
    }
    free(line);
  }
  fputs("\n", stderr);
  return code;
}

static int open_turns(state* all) {
  char beside[4096];
  snprintf(beside, sizeof beside, "%s.turns.json", all->given.bundle);
  const char* path = all->given.turns != NULL ? all->given.turns : beside;
  FILE* file = fopen(path, "rb");
  size_t nbytes = 0;
  char* json = read_all(file, &nbytes);
  if (file != NULL) fclose(file);
  if (json == NULL) {
    fprintf(stderr,
            "kvc-run: cannot read %s, which --chat needs: write it with kvc chat %s --turns %s\n",
            path, all->given.bundle, path);
    return 1;
  }
  const kvc_code code = kvc_turns_open(json, nbytes, &all->turns, &all->error);
  free(json);
  if (code != KVC_OK) return failed(all, path);
  return add_setting(&all->given, "stop_tokens", kvc_turns_stop_tokens(all->turns)) ? 0 : 1;
}

/* Opens the session, or the one in a file with what is pending there. */
static int open_session(state* all) {
  if (all->given.restore == NULL) {
    const kvc_code code =
        kvc_session_open(all->bundle, NULL, 0, all->given.capacity, &all->session, &all->error);
    return code == KVC_OK ? 0 : failed(all, "");
  }
  const char* attached;
  const int64_t* pending;
  int64_t count, position = 0;
  int32_t rows = 1;
  if (kvc_session_restore(all->bundle, all->given.restore, &all->session, &all->error) != KVC_OK ||
      kvc_session_attached(all->session, 0, &attached, &pending, &count, &all->error) != KVC_OK) {
    return failed(all, "");
  }
  add_tokens(&all->pending, pending, count);
  const kvc_code code = kvc_session_position(all->session, 0, &position, &rows, &all->error);
  all->begun = code == KVC_OK ? position > 0 || count > 0 : 1;
  return 0;
}

static int open_tokenizer(state* all) {
  if (all->given.ids) return 0;
  const kvc_code code = kvc_tokenizer_of(all->bundle, &all->tokenizer, &all->error);
  if (code == KVC_UNKNOWN_NAME && !all->given.chat) return 0; /* texts are token ids */
  if (code == KVC_UNKNOWN_NAME)
    return fputs("kvc-run: --chat: the bundle has no tokenizer\n", stderr), 1;
  if (code != KVC_OK) {
    failed(all, "");
    if (!all->given.chat)
      fputs("kvc-run: with --ids, PROMPT is token ids, which other programs make\n", stderr);
    return 1;
  }
  return all->given.chat ? open_turns(all) : 0;
}

static int open_generator(state* all) {
  char settings[MOST_SETTINGS + 2];
  snprintf(settings, sizeof settings, "{%s}", all->given.settings);
  if (kvc_generator_open(all->bundle, all->session, settings, &all->generator, &all->error) !=
      KVC_OK) {
    return failed(all, "");
  }
  const char* ignored = kvc_generator_ignored(all->generator);
  if (ignored[0] != '\0') fprintf(stderr, "kvc-run: %s\n", ignored);
  if (all->tokenizer == NULL) return 0;
  const char* own = all->given.stop_strings;
  const char* stops = own[0] != '\0' ? own : kvc_generator_stop_strings(all->generator);
  const kvc_code code = kvc_spelling_open(all->tokenizer, stops, &all->spelling, &all->error);
  return code == KVC_OK ? 0 : failed(all, "");
}

static int open_all(state* all) {
  const double began = seconds_now();
  if (kvc_open(all->given.bundle, &all->bundle, &all->error) != KVC_OK) return failed(all, "");
  if (all->given.threads > 0 &&
      kvc_set_threads(all->bundle, all->given.threads, &all->error) != KVC_OK) {
    return failed(all, "");
  }
  const double opened = seconds_now();
  if (open_session(all) != 0) return 1;
  const double session = seconds_now();
  if (open_tokenizer(all) != 0 || open_generator(all) != 0) return 1;
  if (all->given.verbose) {
    fprintf(stderr, "open: bundle %.1f ms, session %.1f ms, tokenizer %.1f ms\n",
            1e3 * (opened - began), 1e3 * (session - opened), 1e3 * (seconds_now() - session));
  }
  return 0;
}

static int save(state* all) {
  if (all->given.save == NULL) return 0;
  const kvc_code code = kvc_session_save(all->session, all->given.save, NULL, all->pending.items,
                                         all->pending.count, &all->error);
  return code == KVC_OK ? 0 : failed(all, all->given.save);
}

static void close_all(state* all) {
  kvc_generator_close(all->generator);
  kvc_spelling_close(all->spelling);
  kvc_turns_close(all->turns);
  kvc_tokenizer_close(all->tokenizer);
  kvc_session_close(all->session, NULL);
  kvc_close(all->bundle);
  free(all->held.items);
  free(all->pending.items);
  free(all->answer.items);
}

int main(int count, char** arguments) {
  static state all;
  const int asked = read_options(count, arguments, &all.given);
  if (asked >= 0) return asked;
  signal(SIGINT, on_interrupt);
  int code = open_all(&all);
  if (code == 0) {
    code = all.given.chat ? run_chat(&all) : run_prompt(&all);
    if (save(&all) != 0) code = 1;
    if (code == 0 && interrupted && !all.given.chat) code = 130;
  }
  close_all(&all);
  return code;
}
