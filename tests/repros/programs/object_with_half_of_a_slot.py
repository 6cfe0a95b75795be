"""Deleting an item of an object that can only be given items raised a TypeError, not an AttributeError."""

SEEN = []


class Given:
    def __setitem__(self, key, value):
        SEEN.append(key)


class Rid:
    def __delitem__(self, key):
        SEEN.append(key)


class Set:
    def __set__(self, instance, value):
        SEEN.append(value)


class Deleted:
    def __delete__(self, instance):
        SEEN.append("gone")


class Host:
    given, rid = Set(), Deleted()


def told(function):
    try:
        function()
    except Exception as error:
        SEEN.append((type(error), str(error)))


def main(x, y, m, n, f, items, table, box):
    def delete_item():
        del Given()[n]

    def set_item():
        Rid()[n] = x

    def set_attribute():
        Host().rid = n

    def delete_attribute():
        del Host().given

    def delete_of_nothing():
        del told[n]

    Given()[n], Host().given = x, n
    del Rid()[n], Host().rid
    for function in (delete_item, set_item, set_attribute, delete_attribute, delete_of_nothing):
        told(function)
    return x * 2
