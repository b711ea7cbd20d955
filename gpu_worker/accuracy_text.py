"""The text on which the arithmetics of a model are compared: prose, numbers and code in turns.

Written for this purpose.  A change to it makes a miss of every verdict that is kept on disk.
"""

TEXT = """\
The lighthouse at the end of the harbor had not been lit for eleven years when Marta bought it. She
paid 48,000 for the tower, the keeper's cottage and half an acre of wet grass, and everyone in the
village agreed that she had been robbed. The roof leaked in four places. The stairs, 137 of them,
were cast iron and had rusted so badly that the agent refused to climb higher than the second
landing. But on a clear evening you could see three islands from the gallery, and in the winter,
when the storms came in from the west, the whole building hummed like the string of a cello.

Her brother, who was an engineer, came in May with a box of tools and a short list of questions.
"How thick are the walls?" he asked. "And who made the lens?" She did not know. They measured the
walls together and found that they were 1.2 meters thick at the base and 0.6 at the top. The lens
was French, made in 1883, and all but two of its prisms were whole.

To keep track of the repairs she wrote a small program, the first one in twenty years:

    def cost(repairs, hourly_rate=35):
        total = 0
        for name, hours, parts in repairs:
            total += hours * hourly_rate + parts
        return total

    repairs = [("roof", 40, 2600), ("stairs", 64, 900), ("lamp", 12, 310)]
    print(cost(repairs))  # 7870

It was not elegant, but it was correct, and it told her what she needed to know: the money would
last until October if nothing else broke. Something else always broke. In June it was the pump; in
July a gull flew through the window of the cottage and sat on the table for most of an afternoon.

The physics of such a light is simple enough. A flame sends its light in all directions, and most
of it is lost in the sky or on the rocks. A lens bends the rays that would be lost until they leave
the tower side by side, as one flat beam. If the flame has a power of 300 candles and the lens
gathers it into a beam 100 times as narrow, a ship sees 30,000 candles, but only while the beam
points at it. The rest of the time there is darkness, and it is the length of the darkness that
tells the sailor which light it is: two flashes every fifteen seconds here, one long flash every ten
seconds at the next cape.

| month | days of rain | hours of work | spent |
|-------|--------------|---------------|-------|
| May   | 9            | 52            | 1,840 |
| June  | 14           | 47            | 2,215 |
| July  | 6            | 88            | 3,070 |

By the end of the summer people had begun to walk out along the wall in the evenings to see how the
work was going. The old man who kept the shop brought a photograph of his grandfather, the last
keeper but one, standing beside the lamp in a coat with brass buttons. "He wrote everything down,"
the old man said. "The wind, the ships, what he ate. If you find his books, I would like to read
them." She found them in September, behind a panel in the watch room: nineteen volumes wrapped in
oilcloth, as dry as the day they were put there.

The first entry read: "Wind northwest, fresh. Lit at 4.51. Two barques and a steamer passed before
midnight. The light burned well." So did the last one, thirty-one years later, almost to the word.
She closed the book, went up the stairs, and counted them again on the way. At the top she wiped
the glass with her sleeve, struck a match, and waited to see whether it would catch.
"""
