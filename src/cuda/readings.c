/* Readings, oldest first, and the events that are used again and again for them. */
#include "readings.h"

#include <stdlib.h>

void is_pins_free(is_device_pool_pin *pins)
{
    while (pins != NULL) {
        is_device_pool_pin *next = pins->next;
        free(pins);
        pins = next;
    }
}

static void free_list(is_reading *r)
{
    while (r != NULL) {
        is_reading *next = r->next;
        is_pins_free(r->pins);
        is_cuda_event_free(r->done);
        free(r);
        r = next;
    }
}

void is_readings_free(is_readings *readings)
{
    free_list(readings->first);
    free_list(readings->spare);
    *readings = (is_readings){0};
}

is_status is_readings_mark(is_readings *readings, is_cuda_stream *stream, is_reading **out, is_error *err)
{
    *out = NULL;
    is_status status = IS_OK;
    if (readings->spare == NULL) {
        is_reading *fresh = calloc(1, sizeof *fresh);
        if (fresh == NULL) return is_fail(err, IS_ENOMEM, "out of memory for an event of the device tier");
        status = is_cuda_event_new(&fresh->done, err);
        if (status != IS_OK) {
            free(fresh);
            return status;
        }
        readings->spare = fresh;
    }
    is_reading *r = readings->spare;
    status = is_cuda_event_record(r->done, stream, err);
    if (status != IS_OK) return status;
    readings->spare = r->next;
    r->next = NULL;
    *out = r;
    return IS_OK;
}

void is_readings_add(is_readings *readings, is_reading *reading, is_device_pool_pin *pins)
{
    is_reading **end = &readings->first;
    while (*end != NULL) end = &(*end)->next;
    *end = reading;
    reading->pins = pins;
}

/* Those of several streams end in any order. */
is_status is_readings_done(is_readings *readings, is_device_pool_pin **pins, is_error *err)
{
    *pins = NULL;
    is_reading **at = &readings->first;
    while (*at != NULL) {
        is_reading *r = *at;
        bool done = false;
        is_status status = is_cuda_event_done(r->done, &done, err);
        if (status != IS_OK) return status;
        if (!done) {
            at = &r->next;
            continue;
        }
        *at = r->next;
        *pins = r->pins;
        while (*pins != NULL) pins = &(*pins)->next;
        r->pins = NULL;
        r->next = readings->spare;
        readings->spare = r;
    }
    return IS_OK;
}

bool is_reading_of(const is_reading *reading, const is_entry *e)
{
    const is_device_pool_pin *pin = reading->pins;
    while (pin != NULL && pin->entry != e) pin = pin->next;
    return pin != NULL;
}
