"""A small shop in three services, to see Everkeel at work: orders, inventory, payments, and customers who buy.

- `requests`: what the services accept
- `books`: the tables of each service, one copy of each rule about money and stock
- `inventory`, `payments`: the two services that orders depend on, over HTTP and over events
- `orders`: takes orders and fulfils them, as a saga that is orchestrated or choreographed
- `world`: where everything is: files or servers, addresses, the token
- `customers`, `scenarios`, `director`: who buys, what goes wrong, and who plays it all and checks the books

Start reading at `orders`.
"""
