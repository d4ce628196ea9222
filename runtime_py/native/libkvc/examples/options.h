/* The options of kvc-run. */
#ifndef KVC_RUN_OPTIONS_H
#define KVC_RUN_OPTIONS_H

#include <stdint.h>

#define MOST_SETTINGS 4096

typedef struct options {
  const char* bundle;
  const char* prompt; /* null if there is none */
  const char* system;
  const char* turns; /* the file of a chat's texts; null: beside the bundle */
  const char* save;
  const char* restore;
  int64_t capacity; /* 0 for the greatest */
  int32_t threads;  /* 0 for all cores */
  int chat, ids, verbose;
  char settings[MOST_SETTINGS];     /* members of a JSON object */
  char stop_strings[MOST_SETTINGS]; /* a JSON list; empty if none are given */
} options;

/* Reads the options. Returns -1 to go on, or the exit code: of --help 0, of a mistake 2. */
int read_options(int count, char** arguments, options* found);

/* Adds a setting, such as "seed" and "7", to the members of a JSON object; 0 if it is too long. */
int add_setting(options* found, const char* name, const char* json);

#endif
