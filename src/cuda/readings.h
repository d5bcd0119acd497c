/*
 * Chunks that were given back while a stream may still read them: a reading is what was released at once on one stream,
 * and ends by its event.
 */
#ifndef IS_CUDA_READINGS_H
#define IS_CUDA_READINGS_H

#include "entries.h"
#include "pool.h"

struct is_device_pool_pin {
    is_entry *entry;
    is_device_pool_pin *next;
};

typedef struct is_reading is_reading;
struct is_reading {
    is_cuda_event *done;
    is_device_pool_pin *pins;
    is_reading *next;
};

/* All zero is empty. */
typedef struct is_readings {
    is_reading *first; /* the oldest */
    is_reading *spare; /* events for more of them, kept for use again */
} is_readings;

/* Frees a list of pins. */
void is_pins_free(is_device_pool_pin *pins);

/* With the pins in them. */
void is_readings_free(is_readings *readings);

/* A reading whose event happens when all that is in the stream now is done; is_readings_add takes it over. */
is_status is_readings_mark(is_readings *readings, is_cuda_stream *stream, is_reading **out, is_error *err);
void is_readings_add(is_readings *readings, is_reading *reading, is_device_pool_pin *pins);

/* Takes out the pins of those that are done, *pins NULL: none.  There may be some on failure too. */
is_status is_readings_done(is_readings *readings, is_device_pool_pin **pins, is_error *err);

/* Whether the reading has a pin of this entry. */
bool is_reading_of(const is_reading *reading, const is_entry *e);

#endif
